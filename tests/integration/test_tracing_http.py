"""Spans of a real process, as a collector and the engine see them."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conformance.raw_engine import Request
from conformance.rig import PATIENCE_S, chat, post
from integration import served
from integration.otlp_receiver import OtlpReceiver, ReceivedSpan
from integration.scripts import answer_ok, stream_ok
from integration.served import Served, Stage

stage = served.stage

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
STREAM = chat(stream=True, stream_options={"include_usage": True})
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


def traced(body: dict[str, Any], flag: str = "01") -> bytes:
    """Render a request of a client that traces."""
    extra = f"traceparent: 00-{TRACE}-{PARENT}-{flag}\r\ntracestate: a=b\r\n"
    return post(body, extra=extra)


async def reset(request: Request, writer: asyncio.StreamWriter) -> None:
    """Break the connection before any byte of an answer."""
    writer.transport.abort()


@pytest.fixture
async def receiver() -> AsyncIterator[OtlpReceiver]:
    async with OtlpReceiver() as receiver:
        yield receiver


async def serve(
    stage: Stage, script: Any, endpoint: str, settings: Any = None, **environ: str
) -> Served:
    proxy = await stage.spawn(
        await stage.engine(script),
        environ={**SOON, **environ},
        tracing={"endpoint": endpoint, **(settings or {})},
    )
    return await proxy.ready(1)


def by_kind(spans: list[ReceivedSpan]) -> dict[str, ReceivedSpan]:
    return {span.kind: span for span in spans}


async def test_a_stream_is_one_trace_from_client_to_engine(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """SERVER below the client's span, route and CLIENT below it, the engine last."""
    proxy = await serve(stage, stream_ok, receiver.url)
    assert (await proxy.request(traced(STREAM))).status == 200
    await receiver.wait_for(3)
    spans = by_kind(receiver.spans)
    server, route, client = spans["server"], spans["internal"], spans["client"]
    assert server.name == "POST /v1/chat/completions"
    assert (route.name, client.name) == ("warmroute.route", "chat m")
    assert {span.trace_id for span in receiver.spans} == {TRACE}
    assert server.parent_id == PARENT
    assert route.parent_id == client.parent_id == server.span_id
    request = stage.engines[0].requests[0]
    assert request.values("traceparent") == [f"00-{TRACE}-{client.span_id}-01"]
    assert request.values("tracestate") == ["a=b"]
    assert client.attributes["gen_ai.usage.input_tokens"] == 9
    assert client.attributes["gen_ai.request.stream"] is True
    assert client.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert route.attributes["warmroute.backend"] == "b0"
    assert not any(span.is_error for span in receiver.spans)
    assert server.start_ns <= client.start_ns <= client.end_ns <= server.end_ns


async def test_a_failed_request_shows_where_it_failed(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """The attempt and the request are errors, with our code; the route is not."""
    proxy = await serve(stage, reset, receiver.url)
    assert (await proxy.request(traced(STREAM))).status == 502
    await receiver.wait_for(3)
    spans = by_kind(receiver.spans)
    assert spans["server"].is_error
    assert spans["client"].is_error
    assert not spans["internal"].is_error
    assert spans["server"].attributes["error.type"] == "upstream_unreachable"
    assert spans["server"].attributes["http.response.status_code"] == 502
    assert spans["server"].parent_id == PARENT


async def test_the_clients_word_on_sampling_is_kept(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """What it does not sample makes no spans, and its header passes as it came."""
    proxy = await serve(stage, answer_ok, receiver.url)
    assert (await proxy.request(traced(chat(), "00"))).status == 200
    assert (await proxy.request(post(chat()))).status == 200
    await receiver.wait_for(3)
    first, second = stage.engines[0].requests
    assert first.values("traceparent") == [f"00-{TRACE}-{PARENT}-00"]
    spans = by_kind(receiver.spans)
    assert len(receiver.spans) == 3
    assert spans["server"].trace_id != TRACE
    (sent,) = second.values("traceparent")
    client = spans["client"]
    assert sent == f"00-{client.trace_id}-{client.span_id}-01"


async def test_a_failure_is_traced_although_nobody_sampled_it(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """In the client's trace, which it had not sampled; good requests are not."""
    proxy = await serve(stage, reset, receiver.url, {"sample": 0})
    assert (await proxy.request(traced(STREAM, "00"))).status == 502
    await receiver.wait_for(3)
    server = by_kind(receiver.spans)["server"]
    assert (server.trace_id, server.parent_id) == (TRACE, PARENT)
    assert server.attributes["warmroute.sampled_by"] == "failed"


async def test_a_slow_request_is_traced_although_nobody_sampled_it(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """What is not slow is not: after it one comes that no limit calls slow."""
    settings = {"sample": 0, "slow_s": 0.000001}
    proxy = await serve(stage, stream_ok, receiver.url, settings)
    assert (await proxy.request(post(STREAM))).status == 200
    await receiver.wait_for(3)
    spans = by_kind(receiver.spans)
    assert spans["server"].attributes["warmroute.sampled_by"] == "slow"
    assert stage.engines[0].requests[0].values("traceparent") == []
    proxy.write(tracing={"endpoint": receiver.url, "sample": 0, "slow_s": 3600})
    assert (await proxy.admin("/api/reload", "POST"))[0] == 200
    assert (await proxy.request(post(STREAM))).status == 200
    proxy.signal(signal.SIGTERM)
    assert await proxy.ended() == 0
    assert len(receiver.spans) == 3


async def test_a_request_that_was_sent_again_tells_of_both_engines(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """Its marks begin with the loss; who was lost is known although none were left."""
    lost: list[Request] = []

    async def reset_once(request: Request, writer: asyncio.StreamWriter) -> None:
        await (answer_ok if lost else reset)(request, writer)
        lost.append(request)

    engines = [await stage.engine(reset_once) for _ in range(2)]
    settings = {"endpoint": receiver.url, "sample": 0, "slow_s": 0.000001}
    proxy = await stage.spawn(*engines, environ=SOON, tracing=settings)
    await proxy.ready(2)
    assert (await proxy.request(post(chat()))).status == 200
    await receiver.wait_for(4)
    first, last = (span for span in receiver.spans if span.kind == "client")
    names = [span.attributes["warmroute.backend"] for span in (first, last)]
    assert sorted(names) == ["b0", "b1"]
    assert (first.is_error, last.is_error) == (True, False)
    assert last.attributes["http.request.resend_count"] == 1
    route = by_kind(receiver.spans)["internal"]
    assert route.attributes["warmroute.backend"] == names[0]
    assert first.start_ns <= first.end_ns <= last.start_ns <= last.end_ns
    ((name, _, facts),) = by_kind(receiver.spans)["server"].events
    assert (name, facts["warmroute.retry.from"]) == ("warmroute.retry", names[0])


async def test_a_request_that_no_engine_had_is_traced_where_it_failed(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """Nobody sampled it, and nobody could take it: one span, with our code."""
    engine = await stage.engine(answer_ok)
    health = {"interval_s": 0.05, "timeout_s": 1, "failures": 2}
    settings = {"endpoint": receiver.url, "sample": 0}
    proxy = await stage.spawn(engine, environ=SOON, tracing=settings, health=health)
    await proxy.ready(1)
    engine.healthy = False
    await proxy.logged("backend_down", backend="b0")
    assert (await proxy.request(traced(chat(), "00"))).status == 503
    await receiver.wait_for(1)
    (server,) = receiver.spans
    assert (server.trace_id, server.parent_id) == (TRACE, PARENT)
    assert server.attributes["error.type"] == "no_healthy_backend"
    assert server.attributes["warmroute.sampled_by"] == "failed"


async def test_the_text_of_prompts_stays_here_unless_asked_for(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """Only `prompts: true` puts it into the attempt's span."""
    body = chat(messages=[{"role": "user", "content": "a secret"}])
    proxy = await serve(stage, answer_ok, receiver.url)
    for num_spans, prompts in ((3, False), (6, True)):
        proxy.write(tracing={"endpoint": receiver.url, "prompts": prompts})
        assert (await proxy.admin("/api/reload", "POST"))[0] == 200
        assert (await proxy.request(post(body))).status == 200
        await receiver.wait_for(num_spans)
    told = ["a secret" in str(span.attributes) for span in receiver.spans]
    assert told == [False] * 5 + [True]
    assert "gen_ai.input.messages" in receiver.spans[5].attributes


async def test_spans_are_flushed_at_the_end(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """What waits in the queue when the process is asked to end still arrives."""
    late = {"OTEL_BSP_SCHEDULE_DELAY": "60000"}
    proxy = await serve(stage, answer_ok, receiver.url, **late)
    assert (await proxy.request(post(chat()))).status == 200
    proxy.signal(signal.SIGTERM)
    assert await proxy.ended() == 0
    assert len(receiver.spans) == 3


@pytest.mark.parametrize("fault", ["dead", "hanging", "refusing"])
async def test_a_bad_collector_harms_nothing(
    stage: Stage, receiver: OtlpReceiver, fault: str
) -> None:
    """Requests go on, the log says so once, and the end is not held up."""
    if fault == "hanging":
        receiver.answers.clear()
    receiver.status = 400
    url = "http://127.0.0.1:1" if fault == "dead" else receiver.url
    patient = {"OTEL_EXPORTER_OTLP_TIMEOUT": "3600"}  # who waits for it is found out
    proxy = await serve(stage, answer_ok, url, **patient)
    client = await proxy.connect()
    for _ in range(50):
        await client.send(traced(chat()))
        async with asyncio.timeout(PATIENCE_S):
            assert (await client.receive()).status == 200
    proxy.signal(signal.SIGTERM)
    assert await proxy.ended() == 0
    assert proxy.count("trace_export_failed") <= 1
    assert proxy.stderr == ""


async def test_a_reload_turns_tracing_on_and_off(
    stage: Stage, receiver: OtlpReceiver
) -> None:
    """Spans begin with the reload that asks for them, and end with the next."""
    engine = await stage.engine(answer_ok)
    proxy = await (await stage.spawn(engine, environ=SOON)).ready(1)
    assert (await proxy.request(traced(chat()))).status == 200
    for num_spans, settings in ((3, {"endpoint": receiver.url}), (3, "off")):
        proxy.write(tracing=settings)
        assert (await proxy.admin("/api/reload", "POST"))[0] == 200
        assert (await proxy.request(traced(chat()))).status == 200
        await receiver.wait_for(num_spans)
    assert len(receiver.spans) == 3


async def test_the_missing_extra_is_named(stage: Stage, tmp_path: Path) -> None:
    """Exit code 2, and the command that installs what is not there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['opentelemetry.sdk'] = None\n"
    )
    proxy = await stage.spawn(
        await stage.engine(answer_ok),
        environ={"PYTHONPATH": str(tmp_path)},
        tracing={"endpoint": "http://127.0.0.1:4318"},
    )
    assert await proxy.ended() == 2
    assert "pip install 'warmroute[otel]'" in proxy.stderr
    assert "Traceback" not in proxy.stderr
