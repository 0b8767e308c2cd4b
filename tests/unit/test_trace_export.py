"""Kept traces on the wire, and the tracer that a configuration asks for."""

import asyncio
import builtins
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from integration.otlp_receiver import GrpcReceiver, OtlpReceiver
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from unit.trace_rig import PARENT, SAMPLED, TRACE, TREE, FakeHead, play

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config.tracing import TracingConfig
from warmroute.proxy.telemetry import Tracer, span_names
from warmroute.proxy.telemetry.collector import GRPC, HTTP, Collector
from warmroute.proxy.telemetry.configured import build_tracer
from warmroute.proxy.telemetry.export import WatchedExporter, open_exporter
from warmroute.proxy.telemetry.span_batch import Origin, SpanBatch


class FakeExporter(SpanExporter):
    """Answer each batch from a list of results."""

    def __init__(self, results: list[SpanExportResult]) -> None:
        self._results = iter(results)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return next(self._results)


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
async def receiver() -> AsyncIterator[Any]:
    async with OtlpReceiver() as running:
        yield running


def build(
    endpoint: str | None, environ: Mapping[str, str] | None = None, **settings: Any
) -> Tracer | None:
    tracing = None
    if endpoint is not None:
        tracing = TracingConfig(endpoint=endpoint, **settings)
    return build_tracer(tracing, TREE, "1.2.3", environ or {})


class TestExport:
    async def test_collector_sees_the_span_tree(self, receiver: Any) -> None:
        """SERVER holds route and CLIENT, and hangs on the client's span."""
        tracer = build(receiver.url)
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
        tracer = build(receiver.url)
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
            "warmroute.sampled_by": "ratio",
        }
        assert receiver.named("warmroute.route").attributes == {
            "warmroute.policy": "expected_ttft",
            "warmroute.candidates": 2,
            "warmroute.backend": "a",
            "warmroute.reason": "prefix",
            "warmroute.grade": "exact",
            "warmroute.view": "events",
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
            "gen_ai.response.model": "smol-1",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 1.0,
            "warmroute.backend": "a",
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
        tracer = build(receiver.url)
        assert tracer is not None
        trace = tracer.start(FakeHead(), 0.0)
        assert trace is not None
        trace.end(0.5, 503, "no_healthy_backend")
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
        tracer = build("http://127.0.0.1:9", os.environ)
        assert tracer is not None
        play(tracer)
        await tracer.close()
        assert receiver.paths == ["/base/v1/traces"]
        assert receiver.resource["service.name"] == "edge"

    async def test_service_has_a_name_and_version(self, receiver: Any) -> None:
        """Without variables the service is warmroute."""
        tracer = build(f"{receiver.url}/v1/traces")
        assert tracer is not None
        play(tracer)
        await tracer.close()
        assert receiver.paths == ["/v1/traces"]
        assert receiver.resource["service.name"] == "warmroute"
        assert receiver.resource["service.version"] == "1.2.3"

    async def test_grpc_reaches_a_collector(self) -> None:
        """The same spans, over the protocol that the file names."""
        async with GrpcReceiver() as receiver:
            tracer = build(receiver.url, protocol="grpc")
            assert tracer is not None
            play(tracer, FakeHead(traceparent=SAMPLED))
            assert await tracer.close()
            server = receiver.named("POST /v1/chat/completions")
            assert (server.trace_id, server.parent_id) == (TRACE, PARENT)
            assert len(receiver.spans) == 3

    async def test_environment_names_the_protocol(self) -> None:
        """It wins over the file's http/protobuf."""
        async with GrpcReceiver() as receiver:
            environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
            tracer = build(receiver.url, environ)
            assert tracer is not None
            play(tracer)
            assert await tracer.close()
            assert receiver.paths == ["Export"]

    async def test_collector_sees_the_events(self, receiver: Any) -> None:
        """They have their names, times and attributes."""
        tracer = build(receiver.url)
        assert tracer is not None
        play(tracer)
        await tracer.close()
        route, client = receiver.named("warmroute.route"), receiver.named("chat smol")
        ((spilled, _, facts),) = route.events
        assert (spilled, facts["warmroute.prefix.best_backend"]) == (
            *("warmroute.spill_over", "b"),
        )
        ((first, at_ns, _),) = client.events
        assert first == "warmroute.first_token"
        assert at_ns - client.start_ns == pytest.approx(250e6, abs=1000)

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

    async def test_the_log_tells_which_collector_failed_and_why(
        self, receiver: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """By status where it answered, in the system's words where nobody did."""
        receiver.status = 400
        tracer = build(receiver.url)
        assert tracer is not None
        play(tracer)
        await tracer.close()
        (record,) = caplog.records
        assert (record.__dict__["endpoint"], record.__dict__["reason"]) == (
            f"{receiver.url}/v1/traces",
            "status 400",
        )

    @pytest.mark.parametrize(("protocol", "path"), [(HTTP, "/v1/traces"), (GRPC, "")])
    async def test_nobody_listening_is_told_in_words_and_without_credentials(
        self,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        protocol: str,
        path: str,
    ) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.01")
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:hunter2@127.0.0.1:9"
        )
        exporter = WatchedExporter(open_exporter(Collector(None, protocol)))
        exporter.export(SpanBatch(Origin("1.2.3"), [], 0))
        exporter.shutdown()
        (record,) = [one for one in caplog.records if one.name.startswith("warmroute")]
        facts = record.__dict__
        assert facts["endpoint"].removeprefix("http://") == f"127.0.0.1:9{path}"
        assert facts["reason"]
        assert "hunter2" not in str(facts)
        assert "Error(" not in facts["reason"]

    async def test_a_refusing_collector_fails_no_request(self, receiver: Any) -> None:
        """Spans are lost, and the tracer still closes."""
        receiver.status = 400
        tracer = build(receiver.url)
        assert tracer is not None
        play(tracer)
        assert await tracer.close()
        assert (receiver.paths, receiver.spans) == (["/v1/traces"], [])

    async def test_a_hanging_collector_does_not_hold_up_the_end(
        self, receiver: Any
    ) -> None:
        """Closing gives up at its bound and says so."""
        receiver.answers.clear()
        tracer = build(receiver.url)
        assert tracer is not None
        play(tracer)
        closing = asyncio.ensure_future(tracer.close(0.3))
        await receiver.wait_for_post()
        async with asyncio.timeout(5):
            assert await closing is False

    async def test_a_dead_collector_never_blocks_a_request(self) -> None:
        """A full queue drops spans; writing goes on."""
        tracer = build("http://127.0.0.1:9")
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
        assert build(endpoint, environ) is None

    def test_an_unknown_protocol_is_refused(self) -> None:
        """The error names the variable and what is known."""
        environ = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}
        with pytest.raises(ConfigError, match=r"_TRACES_PROTOCOL: .*'http/json'.*grpc"):
            build("http://c:4318", environ)

    def test_always_off_keeps_nothing(self) -> None:
        """What the standard variable turns off is not turned on by the tail choice."""
        tracer = build("http://127.0.0.1:9", {"OTEL_TRACES_SAMPLER": "always_off"})
        assert tracer is not None
        assert tracer.start(FakeHead(), 0.0) is None

    @pytest.mark.parametrize(
        ("protocol", "extra"), [("http/protobuf", "otel"), ("grpc", "otel-grpc")]
    )
    def test_a_missing_extra_is_named(
        self, monkeypatch: pytest.MonkeyPatch, protocol: str, extra: str
    ) -> None:
        """The error tells what to install."""
        real = builtins.__import__

        def without_sdk(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] = (),
            level: int = 0,
        ) -> ModuleType:
            if name.startswith("opentelemetry.exporter.otlp.proto.http"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name.startswith("opentelemetry.exporter.otlp.proto.grpc"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return real(name, globals, locals, fromlist, level)

        for name in ("export", "http_exporter", "grpc_exporter"):
            module = f"warmroute.proxy.telemetry.{name}"
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setattr(builtins, "__import__", without_sdk)
        with pytest.raises(ConfigError, match=rf"install 'warmroute\[{extra}\]'"):
            build("http://c:4318", protocol=protocol)

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
