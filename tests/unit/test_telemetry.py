import asyncio
import builtins
import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from warmroute.policies.errors import ConfigError
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.telemetry import Tracer, build_tracer, span_names
from warmroute.proxy.telemetry.export import WatchedExporter
from warmroute.proxy.telemetry.request_trace import RequestTrace
from warmroute.proxy.telemetry.sampling import Sampler, choose_sampler
from warmroute.proxy.telemetry.traceparent import parse_traceparent

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"
START_NS = 1_700_000_000_000_000_000


def _load_receiver() -> ModuleType:
    path = Path(__file__).parents[1] / "integration" / "otlp_receiver.py"
    spec = importlib.util.spec_from_file_location("otlp_receiver", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


receiver_module = _load_receiver()


class FakeHead:
    """A request head with the fields a trace reads."""

    def __init__(
        self,
        path: str = "/v1/chat/completions",
        method: bytes = b"POST",
        **fields: str,
    ) -> None:
        self.method = method
        self.path = path
        self.version = "1.1"
        self.fields: Mapping[bytes, bytes] = {
            name.replace("_", "-").encode(): value.encode()
            for name, value in fields.items()
        }


class FakeSink:
    """Keep ended traces."""

    def __init__(self) -> None:
        self.traces: list[RequestTrace] = []

    def write(self, trace: RequestTrace) -> None:
        self.traces.append(trace)

    async def close(self, timeout_s: float) -> bool:
        return True


class FakeExporter(SpanExporter):
    """Answer each batch from a list of results."""

    def __init__(self, results: list[SpanExportResult]) -> None:
        self._results = iter(results)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return next(self._results)


def decide() -> Decision:
    roster = Roster(["a", "b"], ["up", "up"], ["mirror", "mirror"], [0, 1])
    costs = [(0.0, 0.1, 0.2, 0.3), (0.0, 0.2, 0.3, 0.5)]
    return Decision(
        *("r1", 1000.0, "/v1/chat/completions", "smol", "exact", 100),
        *("expected_ttft", roster, [48, 64], 0, "prefix", costs),
    )


def attempt(trace: RequestTrace, decision: Decision, now: float) -> str:
    return trace.attempt(
        decision,
        now,
        kind="chat",
        engine="vllm",
        host="10.0.0.1",
        port=8101,
        stream=True,
        max_tokens=32,
        session="s-1",
    )


def play(tracer: Tracer, head: FakeHead | None = None) -> RequestTrace:
    """Run one good request through *tracer*."""
    ledger, decision = Ledger(), decide()
    trace = tracer.start_server(head or FakeHead(), 10.0, b"192.0.2.7")
    assert trace is not None
    ledger.open(decision, 0.0)
    trace.route(decision, 10.001, 10.002, block_size=16)
    attempt(trace, decision, 10.002)
    trace.first_token(10.252)
    ledger.settle(
        decision,
        status=200,
        duration_s=1.0,
        prompt_tokens=100,
        cached_tokens=32,
        output_tokens=7,
        ttft_s=0.25,
    )
    trace.end(
        11.0,
        200,
        decision=decision,
        response_id="chatcmpl-r1",
        response_model="smol",
        finish_reasons=["stop"],
    )
    return trace


def fake_tracer(sample: float = 1.0) -> tuple[Tracer, FakeSink]:
    sink = FakeSink()
    return Tracer(sink, Sampler(sample), wall_ns=lambda: START_NS), sink


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
async def receiver() -> AsyncIterator[Any]:
    async with receiver_module.OtlpReceiver() as running:
        yield running


class TestTraceparent:
    def test_reads_the_specification_s_example(self) -> None:
        """Trace id, span id and flags are taken as written."""
        context = parse_traceparent(SAMPLED)
        assert context is not None
        assert f"{context.trace_id:032x}" == TRACE
        assert f"{context.span_id:016x}" == PARENT
        assert context.trace_flags.sampled
        assert context.is_remote

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "00",
            f"ff-{TRACE}-{PARENT}-01",
            f"00-{'0' * 32}-{PARENT}-01",
            f"00-{TRACE}-{'0' * 16}-01",
            f"00-{TRACE.upper()}-{PARENT}-01",
            f"00-{TRACE}-{PARENT}-01-more",
            f"00-{TRACE}-{PARENT}-0",
            f"00-{TRACE}-{PARENT}-zz",
            f"01-{TRACE}-{PARENT}-01x",
            f"00_{TRACE}-{PARENT}-01",
            "x" * 5000,
        ],
    )
    def test_refuses_what_is_malformed(self, value: str) -> None:
        """A malformed header starts a new trace instead."""
        assert parse_traceparent(value) is None

    def test_reads_a_later_version(self) -> None:
        """Fields that a later version appends are ignored."""
        assert parse_traceparent(f"01-{TRACE}-{PARENT}-01-more") is not None


class TestSampling:
    @pytest.mark.parametrize(("ratio", "expected"), [(0.0, False), (1.0, True)])
    def test_ends_of_the_ratio_are_never_and_always(
        self, ratio: float, expected: bool
    ) -> None:
        """0 samples nothing, 1 everything."""
        sampler = Sampler(ratio)
        assert {sampler.sample(None) is not None for _ in range(200)} == {expected}

    def test_ratio_is_about_kept(self) -> None:
        """A quarter of many traces is sampled."""
        sampler = Sampler(0.25)
        sampled = sum(sampler.sample(None) is not None for _ in range(4000))
        assert 850 <= sampled <= 1150

    @pytest.mark.parametrize(("header", "expected"), [(SAMPLED, 1), (UNSAMPLED, 0)])
    def test_the_parent_decides(self, header: str, expected: int) -> None:
        """A client's decision beats the ratio, both ways."""
        sampler = Sampler(1.0 - expected)
        assert (sampler.sample(parse_traceparent(header)) is not None) == expected

    def test_ratio_of_trace_ids_agrees_between_services(self) -> None:
        """Without a parent's say, the trace id alone decides."""
        sampler = Sampler(0.5, parent_based=False)
        low = SpanContext((7 << 64) | 1, 1, True, TraceFlags(0))
        high = SpanContext((7 << 64) | (2**64 - 1), 1, True, TraceFlags(1))
        assert (sampler.sample(low), sampler.sample(high)) == (low.trace_id, None)

    @pytest.mark.parametrize(
        ("name", "argument", "expected"),
        [
            ("", "", "<Sampler parent-based 0.3>"),
            ("always_off", "", "<Sampler 0.0>"),
            ("parentbased_always_on", "", "<Sampler parent-based 1.0>"),
            ("traceidratio", "0.01", "<Sampler 0.01>"),
            ("parentbased_traceidratio", "", "<Sampler parent-based 1.0>"),
        ],
    )
    def test_environment_wins_over_the_file(
        self, name: str, argument: str, expected: str
    ) -> None:
        """OTEL_TRACES_SAMPLER and its argument are the standard's."""
        environ = {"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument}
        assert expected == repr(choose_sampler(0.3, environ))

    @pytest.mark.parametrize(
        "environ",
        [
            {"OTEL_TRACES_SAMPLER": "sometimes"},
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "x"},
        ],
    )
    def test_bad_variables_are_configuration_errors(
        self, environ: dict[str, str]
    ) -> None:
        """The error names the variable and its value."""
        with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
            choose_sampler(1.0, environ)


class TestTrace:
    def test_unsampled_requests_have_no_trace(self) -> None:
        """None is all that an unsampled request costs."""
        tracer, _ = fake_tracer(0.0)
        assert tracer.start_server(FakeHead(), 0.0) is None

    def test_attempt_sends_its_own_traceparent(self) -> None:
        """The engine's parent is our CLIENT span, in the client's trace."""
        tracer, _ = fake_tracer()
        trace = tracer.start_server(FakeHead(traceparent=SAMPLED), 0.0)
        assert trace is not None
        sent = parse_traceparent(attempt(trace, decide(), 0.1))
        assert sent is not None
        assert sent.span_id == trace.spans[-1].context.span_id
        assert trace.trace_hex == f"{sent.trace_id:032x}" == TRACE
        assert sent.trace_flags.sampled

    def test_names_have_low_cardinality(self) -> None:
        """Unknown paths and methods never make a span name."""
        tracer, _ = fake_tracer()
        names = []
        for path, method in [("/x/17", b"POST"), ("/v1/models", b"BREW")]:
            trace = tracer.start_server(FakeHead(path, method), 0.0)
            assert trace is not None
            names.append(trace.server.name)
        assert names == ["POST", "HTTP /v1/models"]

    def test_a_retry_is_a_second_client_span(self) -> None:
        """The lost attempt is an error, the next one counts its resends."""
        tracer, sink = fake_tracer()
        decision = decide()
        trace = tracer.start_server(FakeHead(), 0.0)
        assert trace is not None
        attempt(trace, decision, 0.1)
        trace.attempt_failed("refused", 0.2)
        decision.attempts = 2
        attempt(trace, decision, 0.3)
        trace.end(0.5, 200)
        _, lost, good = sink.traces[0].spans
        assert (lost.error, lost.end_s) == ("refused", 0.2)
        assert (good.error, good.end_s) == (None, 0.5)
        assert good.attributes["http.request.resend_count"] == 1

    @pytest.mark.parametrize(
        ("status", "error", "server", "client"),
        [
            (200, None, None, None),
            (404, None, None, "404"),
            (503, None, "503", "503"),
            (504, "upstream_timeout", "upstream_timeout", "upstream_timeout"),
            (200, "upstream_lost", "upstream_lost", "upstream_lost"),
            (499, "client_gone", None, "client_gone"),
        ],
    )
    def test_status_follows_the_conventions(
        self, status: int, error: str | None, server: str | None, client: str | None
    ) -> None:
        """4xx is no error of a server, but one of its client span."""
        tracer, sink = fake_tracer()
        trace = tracer.start_server(FakeHead(), 0.0)
        assert trace is not None
        attempt(trace, decide(), 0.1)
        trace.end(0.5, status, error_type=error)
        assert [span.error for span in sink.traces[0].spans] == [server, client]

    def test_only_the_first_end_exports(self) -> None:
        """Every exit may end the trace."""
        tracer, sink = fake_tracer()
        trace = play(tracer)
        trace.end(99.0, 500)
        assert len(sink.traces) == 1


class TestExport:
    async def test_collector_sees_the_span_tree(self, receiver: Any) -> None:
        """SERVER holds route and CLIENT, and hangs on the client's span."""
        tracer = build_tracer(receiver.url, version="1.2.3", environ={})
        assert tracer is not None
        play(tracer, FakeHead(traceparent=SAMPLED, user_agent="curl/8"))
        assert await tracer.close()
        server = receiver.named("POST /v1/chat/completions")
        route, client = receiver.named("warmroute.route"), receiver.named("chat smol")
        assert receiver.paths == ["/v1/traces"]
        assert {span.trace_id for span in receiver.spans} == {TRACE}
        assert [server.parent_id, route.parent_id, client.parent_id] == [
            PARENT,
            server.span_id,
            server.span_id,
        ]
        assert [server.kind, route.kind, client.kind] == [
            *("server", "internal", "client")
        ]
        assert server.end_ns - server.start_ns == 1_000_000_000
        assert route.start_ns - server.start_ns == pytest.approx(1e6, abs=1000)
        assert not any(span.is_error for span in receiver.spans)

    async def test_collector_sees_the_attributes(self, receiver: Any) -> None:
        """All attributes of the three spans arrive with their types."""
        tracer = build_tracer(receiver.url, version="1.2.3", environ={}, port=8080)
        assert tracer is not None
        play(tracer, FakeHead(user_agent="curl/8"))
        await tracer.close()
        assert receiver.named("POST /v1/chat/completions").attributes == {
            "http.request.method": "POST",
            "http.route": "/v1/chat/completions",
            "http.response.status_code": 200,
            "url.path": "/v1/chat/completions",
            "url.scheme": "http",
            "server.address": "127.0.0.1",
            "server.port": 8080,
            "client.address": "192.0.2.7",
            "network.protocol.version": "1.1",
            "user_agent.original": "curl/8",
            "warmroute.request_id": "r1",
        }
        assert receiver.named("warmroute.route").attributes == {
            "warmroute.policy": "expected_ttft",
            "warmroute.candidates": 2,
            "warmroute.backend": "a",
            "warmroute.reason": "prefix",
            "warmroute.grade": "exact",
            "warmroute.score": 0.3,
            "warmroute.block_size": 16,
            "warmroute.prompt.blocks": 6,
            "warmroute.prefix.matched_blocks": 3,
            "warmroute.prefix.best_matched_blocks": 4,
        }
        client = receiver.named("chat smol").attributes
        assert client.pop("gen_ai.response.time_to_first_chunk") == pytest.approx(0.25)
        assert client == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": "smol",
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": 32,
            "gen_ai.conversation.id": "s-1",
            "gen_ai.response.id": "chatcmpl-r1",
            "gen_ai.response.model": "smol",
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 32,
            "warmroute.predicted_cached_tokens": 48,
            "warmroute.prediction_error_tokens": 16,
            "http.response.status_code": 200,
            "server.address": "10.0.0.1",
            "server.port": 8101,
        }

    async def test_collector_sees_errors(self, receiver: Any) -> None:
        """A failed request is an error span with its stable code."""
        tracer = build_tracer(receiver.url, version="1", environ={})
        assert tracer is not None
        trace = tracer.start_server(FakeHead(), 0.0)
        assert trace is not None
        trace.end(0.5, 503, error_type="no_healthy_backend")
        await tracer.close()
        (server,) = receiver.spans
        assert (server.is_error, server.message) == (True, "no_healthy_backend")
        assert server.attributes["error.type"] == "no_healthy_backend"

    async def test_environment_names_the_collector_and_the_service(
        self, receiver: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The OTEL variables win over the file."""
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{receiver.url}/base")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
        tracer = build_tracer("http://127.0.0.1:9", version="1", environ=os.environ)
        assert tracer is not None
        play(tracer)
        await tracer.close()
        assert receiver.paths == ["/base/v1/traces"]
        assert receiver.resource["service.name"] == "edge"

    async def test_service_has_a_name_and_version(self, receiver: Any) -> None:
        """Without variables the service is warmroute."""
        tracer = build_tracer(f"{receiver.url}/v1/traces", version="1.2.3", environ={})
        assert tracer is not None
        play(tracer)
        await tracer.close()
        assert receiver.paths == ["/v1/traces"]
        assert receiver.resource["service.name"] == "warmroute"
        assert receiver.resource["service.version"] == "1.2.3"

    def test_a_failing_collector_is_reported_on_change(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Failure is logged once, and so is recovery; not every batch."""
        caplog.set_level("INFO")
        good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
        exporter = WatchedExporter(FakeExporter([good, bad, bad, bad, good, good]))
        for _ in range(6):
            exporter.export([])
        assert caplog.messages == ["trace_export_failed", "trace_export_recovered"]

    async def test_a_refusing_collector_fails_no_request(self, receiver: Any) -> None:
        """Spans are lost, and the tracer still closes."""
        receiver.status = 400
        tracer = build_tracer(receiver.url, version="1", environ={})
        assert tracer is not None
        play(tracer)
        assert await tracer.close()
        assert (receiver.paths, receiver.spans) == (["/v1/traces"], [])

    async def test_a_hanging_collector_does_not_hold_up_the_end(
        self, receiver: Any
    ) -> None:
        """Closing gives up at its bound and says so."""
        receiver.answers.clear()
        tracer = build_tracer(receiver.url, version="1", environ={})
        assert tracer is not None
        play(tracer)
        closing = asyncio.ensure_future(tracer.close(0.3))
        await receiver.wait_for_post()
        async with asyncio.timeout(5):
            assert await closing is False

    async def test_a_dead_collector_never_blocks_a_request(self) -> None:
        """A full queue drops spans; writing goes on."""
        tracer = build_tracer("http://127.0.0.1:9", version="1", environ={})
        assert tracer is not None
        for _ in range(3000):
            play(tracer)
        await tracer.close(0.1)


class TestBuild:
    @pytest.mark.parametrize(
        ("endpoint", "environ"),
        [
            (None, {}),
            ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}),
            ("http://c:4318", {"OTEL_TRACES_EXPORTER": "none"}),
        ],
    )
    def test_is_off_without_an_endpoint_or_when_disabled(
        self, endpoint: str | None, environ: dict[str, str]
    ) -> None:
        """No tracer means no cost."""
        assert build_tracer(endpoint, version="1", environ=environ) is None

    def test_a_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error tells what to install."""
        real = builtins.__import__

        def without_sdk(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] = (),
            level: int = 0,
        ) -> ModuleType:
            if name.startswith("opentelemetry.exporter"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return real(name, globals, locals, fromlist, level)

        monkeypatch.delitem(
            sys.modules, "warmroute.proxy.telemetry.export", raising=False
        )
        monkeypatch.setattr(builtins, "__import__", without_sdk)
        with pytest.raises(ConfigError, match=r"pip install 'warmroute\[otel\]'"):
            build_tracer("http://c:4318", version="1", environ={})

    def test_importing_tracing_does_not_import_the_sdk(self) -> None:
        """The base install has the API only."""
        code = (
            "import sys, warmroute.proxy.telemetry;"
            "print([m for m in sys.modules if m.startswith('opentelemetry.sdk')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"

    def test_every_attribute_is_documented(self) -> None:
        """docs/tracing.md lists all attributes that a span can have."""
        text = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
        attributes = {
            value
            for name, value in vars(span_names).items()
            if name.isupper() and isinstance(value, str)
        }
        assert len(attributes) > 30
        assert {name for name in attributes if f"`{name}`" not in text} == set()
