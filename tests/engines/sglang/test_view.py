"""A real `warmroute serve` in front of a real SGLang: the view is the cache."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from engines.sglang.engine import MODEL, PAGE, SGLangEngine
from integration.served import Served

pytestmark = [
    pytest.mark.engines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]
_RANDOM = random.Random(11)


@pytest_asyncio.fixture(loop_scope="session")
async def served(sglang: SGLangEngine, tmp_path: Path) -> AsyncIterator[Served]:
    settings = {
        "backends": [{"name": "a", "url": sglang.url, "engine": "sglang"}],
        "models": [{"name": MODEL, "tokenizer": str(sglang.options.model)}],
        "health": {"interval_s": 1, "timeout_s": 20},
    }
    process = Served(tmp_path / "config.yaml", settings)
    process.write()
    await sglang.flush()
    try:
        await process.spawn({})
        await process.ready(1)
        await process.until(
            "/api/state",
            lambda state: state["backends"][0]["view"]["source"] == "events",
            timeout_s=60,
        )
        yield process
    finally:
        await process.close()


async def _ask(
    served: Served, sglang: SGLangEngine, name: str, path: str, body: dict[str, Any]
) -> dict[str, Any]:
    """Send one request through warmroute; returns the outcome in its record."""
    host, port = served.address("listen")
    url = f"http://{host}:{port}{path}"
    headers = {"x-request-id": name}
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, **body}
    async with sglang.http.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        await response.read()
    record: dict[str, Any] = await served.until(
        f"/api/decisions/{name}", lambda one: bool(one.get("outcome"))
    )
    assert record["grade"] == "exact"
    outcome: dict[str, Any] = record["outcome"]
    return outcome


def _fresh(length: int) -> list[int]:
    return [_RANDOM.randrange(3, 259) for _ in range(length)]


async def test_every_prediction_is_what_the_engine_reports(
    served: Served, sglang: SGLangEngine
) -> None:
    """Chats that grow, shared prefixes, salts, and more than the pool holds."""
    stem, requests = _fresh(20 * PAGE), []
    chat = [{"role": "system", "content": "Answer with what you were told. " * 3}]
    for turn in range(8):
        chat = [*chat, {"role": "user", "content": f"Turn {turn}: what now? 👋"}]
        requests.append(("/v1/chat/completions", {"messages": chat}))
        chat = [*chat, {"role": "assistant", "content": "Well, " * turn}]
        shared = stem[: _RANDOM.randrange(1, len(stem))] + _fresh(PAGE + turn)
        requests.append(("/v1/completions", {"prompt": shared}))
        requests.append(("/v1/completions", {"prompt": _fresh(32 * PAGE + 3)}))
        salt = f"salt {turn % 2}"
        requests.append(("/v1/completions", {"prompt": stem, "cache_salt": salt}))
    pairs = []
    for at, (path, body) in enumerate(requests):
        outcome = await _ask(served, sglang, f"view-{at}", path, body)
        pairs.append((outcome["predicted_tokens"], outcome["cached_tokens"]))
    assert [one for one, _ in pairs] == [other for _, other in pairs]
    assert sum(cached > 0 for _, cached in pairs) >= len(pairs) / 3
    assert sum(cached == 0 for _, cached in pairs) >= 4


async def test_a_salted_prompt_promises_nothing_to_one_without(
    served: Served, sglang: SGLangEngine
) -> None:
    asked = _fresh(10 * PAGE)
    salted = {"prompt": asked, "cache_salt": "secret"}
    await _ask(served, sglang, "salt-0", "/v1/completions", salted)
    plain = await _ask(served, sglang, "salt-1", "/v1/completions", {"prompt": asked})
    again = await _ask(served, sglang, "salt-2", "/v1/completions", salted)
    assert (plain["predicted_tokens"], plain["cached_tokens"]) == (0, 0)
    assert (again["predicted_tokens"], again["cached_tokens"]) == (9 * PAGE, 9 * PAGE)


async def test_a_flush_of_the_engine_is_seen(
    served: Served, sglang: SGLangEngine
) -> None:
    asked = {"prompt": _fresh(10 * PAGE)}
    await _ask(served, sglang, "flush-0", "/v1/completions", asked)
    await sglang.flush()
    await served.until(
        "/api/state", lambda state: state["backends"][0]["view"]["blocks"] == 0
    )
    outcome = await _ask(served, sglang, "flush-1", "/v1/completions", asked)
    assert (outcome["predicted_tokens"], outcome["cached_tokens"]) == (0, 0)
