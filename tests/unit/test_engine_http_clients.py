"""Clients of the embedded engine's server: their ids, and when they leave."""

import asyncio

import aiohttp
import pytest
from unit.fake_generator import FakeEngine, serve

PATH = "/v1/completions"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_request_id_of_the_client_is_kept(stream: bool) -> None:
    """It comes back as a header and in the answer's id, and reaches the engine."""
    engine = FakeEngine()
    body = {"prompt": "x", "stream": stream}
    async with serve(engine) as served:
        headers = {"X-Request-Id": "my-id_1.a"}
        async with served.client.post(PATH, json=body, headers=headers) as response:
            assert response.headers["X-Request-Id"] == "my-id_1.a"
            assert '"id":"cmpl-my-id_1.a"' in await response.text()
    assert engine.requests[0].request_id == "my-id_1.a"


@pytest.mark.parametrize("given", [None, "", "a b", "a" * 129, "ä"])
async def test_a_request_id_is_made_where_none_is_usable(given: str | None) -> None:
    """Errors carry one, too, and no two are equal."""
    headers = {} if given is None else {"X-Request-Id": given}
    made = set()
    async with serve(FakeEngine()) as served:
        for body in ({"prompt": "x"}, {}):
            async with served.client.post(PATH, json=body, headers=headers) as response:
                made.add(response.headers["X-Request-Id"])
    assert len(made) == 2
    assert all(len(one) == 32 for one in made)


async def test_a_stream_may_not_be_buffered() -> None:
    """Its headers forbid caches and proxies to hold it back."""
    async with (
        serve(FakeEngine()) as served,
        served.client.post(PATH, json={"prompt": "x", "stream": True}) as response,
    ):
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.content_type == "text/event-stream"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
async def test_a_client_that_leaves_aborts_its_request(
    stream: bool, prompt: object
) -> None:
    """The engine is told of every prompt of it, whether it streams or not."""
    engine = FakeEngine()
    engine.is_held = True
    body = {"prompt": prompt, "stream": stream}
    async with serve(engine) as served:
        async with aiohttp.ClientSession() as session:
            url = served.client.make_url(PATH)
            asking = asyncio.create_task(session.post(url, json=body))
            async with asyncio.timeout(10):
                await engine.submitted.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(10):
            while len(engine.aborted) < len(engine.requests):
                engine.aborts.clear()
                await engine.aborts.wait()
    assert len(engine.aborted) == len(engine.requests) == len(prompt)  # type: ignore[arg-type]


async def test_a_client_that_stays_is_not_aborted() -> None:
    """A finished request is left alone."""
    engine = FakeEngine()
    async with serve(engine) as served:
        assert (await served.post(PATH, {"prompt": "x"}))[0] == 200
        await served.stream(PATH, {"prompt": "x"})
    assert engine.aborted == []


async def test_a_slow_answer_comes_when_it_comes() -> None:
    """Other requests are answered meanwhile."""
    engine = FakeEngine()
    engine.is_held = True
    async with serve(engine) as served:
        asking = asyncio.create_task(served.post(PATH, {"prompt": "x"}))
        async with asyncio.timeout(10):
            await engine.submitted.wait()
        assert (await served.get("/health"))[0] == 200
        engine.release()
        status, answer = await asking
    assert status == 200
    assert answer["choices"][0]["text"] == "Hello"
