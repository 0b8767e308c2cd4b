"""Marks, judgement and spans of requests; see test_trace_export for the wire."""

import json
from typing import Any

import pytest
from opentelemetry.trace import SpanContext, TraceFlags
from unit.trace_rig import (
    BODY,
    PARENT,
    PROMPT,
    SAMPLED,
    TRACE,
    TREE,
    UNSAMPLED,
    FakeHead,
    attempt,
    backend,
    decide,
    fake_tracer,
    mirror,
    play,
)

from warmroute.policies.errors import ConfigError
from warmroute.proxy.telemetry.answer_facts import read_answer
from warmroute.proxy.telemetry.request_facts import input_messages, sampling_facts
from warmroute.proxy.telemetry.sampling import Sampler, choose_sampler
from warmroute.proxy.telemetry.span import Span
from warmroute.proxy.telemetry.traceparent import parse_traceparent
from warmroute.proxy.telemetry.unusual import Unusual


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

    def test_others_keep_the_traces_that_we_began(self) -> None:
        """A service behind us with the same ratio keeps what we do, and all of it."""
        ours, theirs = Sampler(0.25), Sampler(0.25, parent_based=False)
        ids = [ours.sample(None) for _ in range(400)]
        kept = [trace_id for trace_id in ids if trace_id is not None]
        assert len(kept) > 0
        for trace_id in kept:
            context = SpanContext(trace_id, 1, True, TraceFlags(0))
            assert context.is_valid
            assert theirs.sample(context) == trace_id

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
        """None is all that one costs; to the end, where nothing is unusual."""
        tracer, _ = fake_tracer(0.0)
        assert tracer.start(FakeHead(), 0.0) is None
        assert tracer.start_late(FakeHead(), 0.0) is None
        assert not tracer.is_unusual(99.0, 503, "upstream_lost", decide())

    def test_attempt_sends_its_own_traceparent(self) -> None:
        """The engine's parent is our CLIENT span, in the client's trace."""
        tracer, sink = fake_tracer()
        trace = tracer.start(FakeHead(traceparent=SAMPLED), 0.0)
        assert trace is not None
        given = attempt(trace, 0.1)
        assert given is not None
        sent = parse_traceparent(given.decode())
        trace.end(0.2, 200)
        assert sent is not None
        assert f"{sent.span_id:016x}" == sink.traces[0][-1].span_id.hex()
        assert f"{sent.trace_id:032x}" == TRACE
        assert sent.trace_flags.sampled

    def test_headers_of_what_is_not_sampled_pass_as_they_came(self) -> None:
        """Its marks, made late, send no traceparent of ours."""
        tracer, sink = fake_tracer(0.0, Unusual(1.0))
        assert tracer.start(FakeHead(), 0.0) is None
        trace = tracer.start_late(FakeHead(), 0.0)
        assert trace is not None
        assert attempt(trace, 0.1) is None
        trace.end(0.2, 200)
        assert sink.traces == []

    def test_names_have_low_cardinality(self) -> None:
        """Unknown paths and methods never make a span name."""
        tracer, sink = fake_tracer()
        for path, method in [("/x/17", b"POST"), ("/v1/models", b"BREW")]:
            trace = tracer.start(FakeHead(path, method), 0.0)
            assert trace is not None
            trace.end(0.1, 200)
        assert [spans[0].name for spans in sink.traces] == ["POST", "HTTP /v1/models"]

    def test_a_retry_is_a_second_client_span(self) -> None:
        """The lost attempt is an error, the next one counts its resends."""
        tracer, sink = fake_tracer()
        trace = tracer.start(FakeHead(), 0.0)
        assert trace is not None
        attempt(trace, 0.1)
        trace.attempt_failed("refused", 0.2)
        attempt(trace, 0.3, "b")
        trace.end(0.5, 200)
        server, lost, good = sink.traces[0]
        assert (lost.error, lost.end_s) == ("refused", 0.2)
        assert (good.error, good.end_s) == (None, 0.5)
        assert good.attributes["http.request.resend_count"] == 1
        (event,) = server.events
        assert (event.name, event.at_s) == ("warmroute.retry", 0.3)
        assert event.attributes == {
            "warmroute.retry.reason": "refused",
            "warmroute.retry.from": "a",
            "warmroute.backend": "b",
        }

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
        trace = tracer.start(FakeHead(), 0.0)
        assert trace is not None
        attempt(trace, 0.1)
        trace.end(0.5, status, error)
        assert [span.error for span in sink.traces[0]] == [server, client]

    def test_only_the_first_end_exports(self) -> None:
        """Every exit may end the trace."""
        tracer, sink = fake_tracer()
        trace = play(tracer)
        trace.end(99.0, 500)
        assert len(sink.traces) == 1


class TestTailChoice:
    @pytest.mark.parametrize(
        ("facts", "reason"),
        [
            ({}, None),
            ({"end_s": 12.0}, "slow"),
            ({"status": 503}, "failed"),
            ({"error": "upstream_lost"}, "failed"),
            ({"status": 404}, None),
            ({"status": 499, "error": "client_gone"}, None),
            ({"cached_tokens": 0}, "mispredicted"),
            ({"cached_tokens": 96}, "mispredicted"),
            ({"cached_tokens": 33}, None),
        ],
    )
    def test_unusual_requests_are_kept(
        self, facts: dict[str, Any], reason: str | None
    ) -> None:
        """Slow, failed and mispredicted ones are, a client's own faults are not."""
        tracer, sink = fake_tracer(0.0, Unusual(2.0, 48))
        play(tracer, **facts)
        kept = [spans[0].attributes["warmroute.sampled_by"] for spans in sink.traces]
        assert kept == ([] if reason is None else [reason])

    def test_it_stays_in_the_clients_trace(self) -> None:
        """Also where the client had not sampled it."""
        tracer, sink = fake_tracer(1.0, Unusual(0.5))
        play(tracer, FakeHead(traceparent=UNSAMPLED))
        server, route, client = sink.traces[0]
        assert {span.trace_id.hex() for span in (server, route, client)} == {TRACE}
        assert server.parent_id is not None
        assert server.parent_id.hex() == PARENT
        assert route.parent_id == client.parent_id == server.span_id

    @pytest.mark.parametrize(
        "facts", [{"end_s": 12.0}, {"status": 503}, {"cached_tokens": 0}]
    )
    def test_it_tells_as_much_as_a_sampled_one(self, facts: dict[str, Any]) -> None:
        """Every span, attribute and event, those of a lost attempt too."""
        told = []
        for sample in (0.0, 1.0):
            tracer, sink = fake_tracer(sample, Unusual(2.0, 48))
            view = mirror()
            view.trust.discount = 0.5
            play(tracer, num_lost=2, view=view, **facts)
            told.append([_telling(span) for span in sink.traces[0]])
        unsampled, sampled = told
        assert len(unsampled) == 5
        reasons = [tree[0][1].pop("warmroute.sampled_by") for tree in told]
        assert (reasons[0] != "ratio", reasons[1]) == (True, "ratio")
        assert unsampled == sampled

    def test_what_cannot_be_judged_is_dropped(self) -> None:
        """Without limits nothing but a failure is unusual."""
        tracer, sink = fake_tracer(0.0, Unusual())
        play(tracer, end_s=1e6, cached_tokens=0)
        assert sink.traces == []
        play(tracer, status=500)
        assert len(sink.traces) == 1

    @pytest.mark.parametrize(
        ("head", "kept"),
        [(FakeHead(), "ratio"), (FakeHead(traceparent=SAMPLED), "parent")],
    )
    def test_a_sampled_trace_says_who_sampled_it(
        self, head: FakeHead, kept: str
    ) -> None:
        tracer, sink = fake_tracer(1.0, Unusual(0.1))
        play(tracer, head)
        assert sink.traces[0][0].attributes["warmroute.sampled_by"] == kept


def _telling(span: Span) -> tuple[object, dict[str, Any], object]:
    """Return what a span tells, but for its ids."""
    events = [(one.name, one.at_s, one.attributes) for one in span.events]
    own = (span.name, span.kind, span.start_s, span.end_s, span.error)
    return own, dict(span.attributes), events


class TestEvents:
    def test_a_spill_over_names_who_had_more(self) -> None:
        """The longest match was elsewhere: its backend and both lengths."""
        tracer, sink = fake_tracer()
        play(tracer)
        (event,) = sink.traces[0][1].events
        assert event.name == "warmroute.spill_over"
        assert event.attributes == {
            "warmroute.prefix.matched_tokens": 48,
            "warmroute.prefix.best_matched_tokens": 64,
            "warmroute.prefix.best_backend": "b",
        }

    def test_the_first_token_is_an_event_of_its_attempt(self) -> None:
        tracer, sink = fake_tracer()
        play(tracer)
        (event,) = sink.traces[0][2].events
        assert (event.name, event.at_s) == ("warmroute.first_token", 10.252)

    def test_a_view_that_falls_back_under_way_is_an_event(self) -> None:
        """The source at the end is told."""
        tracer, sink = fake_tracer()
        trace, view = tracer.start(FakeHead(), 0.0), mirror()
        assert trace is not None
        attempt(trace, 0.1, view=view)
        view.source = "mirror"
        trace.end(0.5, 200)
        (event,) = sink.traces[0][1].events
        assert (event.name, event.at_s) == ("warmroute.view_degraded", 0.5)
        assert event.attributes["warmroute.view"] == "mirror"

    def test_a_view_that_falls_after_the_end_is_none(self) -> None:
        """A trace may be written later; it tells what was true at its end."""
        tracer, _ = fake_tracer()
        view = mirror()
        trace = play(tracer, view=view)
        view.source = "mirror"
        client = TREE.spans(trace, "ratio")[-1]
        assert [event.name for event in client.events] == ["warmroute.first_token"]

    def test_a_view_that_is_believed_less_is_an_event(self) -> None:
        """At the dispatch it was known already."""
        tracer, sink = fake_tracer()
        view = mirror()
        view.trust.discount = 0.4
        play(tracer, view=view)
        event = sink.traces[0][2].events[-1]
        assert (event.name, event.at_s) == ("warmroute.view_degraded", 10.002)
        assert event.attributes["warmroute.view.discount"] == 0.4

    def test_a_good_view_is_none(self) -> None:
        tracer, sink = fake_tracer()
        play(tracer, view=mirror())
        assert len(sink.traces[0][2].events) == 1


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b'{"temperature": 0.5, "top_p": 1}', {"temperature": 0.5, "top_p": 1.0}),
            (b'{"sampling_params": {"top_p": 0.9}}', {"top_p": 0.9}),
            (b'{"temperature": true, "top_p": "x"}', {}),
            (b'{"temperature": 1%b, "top_p": 1}' % (b"0" * 400), {"top_p": 1.0}),
            (b"{", {}),
            (b"[" * 100_000, {}),
        ],
    )
    def test_sampling_parameters_are_read(
        self, body: bytes, expected: dict[str, float]
    ) -> None:
        """In both spellings; what is no number is left out."""
        named = {f"gen_ai.request.{name}": one for name, one in expected.items()}
        assert sampling_facts(body) == named

    @pytest.mark.parametrize(
        ("ending", "model", "reasons"),
        [
            (
                b'{"model": "m", "choices": [{"finish_reason": "length"}]}',
                "m",
                ["length"],
            ),
            (b'{"model": "m", "stop_reason": "end_turn"}', "m", ["end_turn"]),
            (b'{"meta_info": {"finish_reason": {"type": "stop"}}}', None, ["stop"]),
            (
                b'data: {"response": {"model": "m", "status": "completed"}}',
                "m",
                ["completed"],
            ),
            (b'data: {"response": {"status": "in_progress"}}', None, []),
            (b'data: {"delta": {"stop_reason": "max_tokens"}}', None, ["max_tokens"]),
            (b"nonsense", None, []),
            (b"", None, []),
        ],
    )
    def test_answers_tell_model_and_ends(
        self, ending: bytes, model: str | None, reasons: list[str]
    ) -> None:
        """In the spellings of all APIs."""
        answer = read_answer(ending)
        assert (answer.model, [*answer.finish_reasons]) == (model, reasons)

    def test_prompts_are_only_told_when_asked_for(self) -> None:
        """By default no attribute of any span holds text of the prompt."""
        tracer, sink = fake_tracer()
        play(tracer)
        facts = [str(span.attributes) for span in sink.traces[0]]
        assert "secret" in BODY.decode()
        assert not any("secret" in told for told in facts)

    @pytest.mark.parametrize(
        ("body", "texts"),
        [
            ({"messages": [{"role": "system", "content": "one"}]}, ["one"]),
            ({"messages": [{"content": [{"type": "text", "text": "two"}]}]}, ["two"]),
            ({"prompt": ["three", "four"]}, ["three", "four"]),
            ({"input": "five"}, ["five"]),
            ({"prompt": [1, 2, 3]}, None),
        ],
    )
    def test_prompts_follow_the_convention(
        self, body: dict[str, Any], texts: list[str] | None
    ) -> None:
        """Messages of parts, as gen_ai.input.messages has them."""
        told = input_messages(json.dumps(body).encode())
        found = None if told is None else json.loads(told)
        assert (found and [one["parts"][0]["content"] for one in found]) == texts

    def test_prompts_are_bounded(self) -> None:
        body = {"messages": [{"content": "z" * 30_000} for _ in range(9)]}
        told = input_messages(json.dumps(body).encode())
        assert told is not None
        assert told.count("z") == 1 << 15


def test_an_attempt_without_a_view_has_none() -> None:
    tracer, _ = fake_tracer()
    trace = tracer.start(FakeHead(), 0.0)
    assert trace is not None
    trace.attempt(backend(), PROMPT, None, None, 1, 0.1)
    assert (trace.attempts[0].view, trace.attempts[0].discount) == ("none", 1.0)
    assert repr(TREE) == "<SpanTree without prompts>"
    assert decide().costs is not None
