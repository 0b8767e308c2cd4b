"""The admin port of a real process: every route, and what its figures mean."""

import re
from pathlib import Path
from typing import Any

import pytest
from conformance.rig import post
from integration import house as houses
from integration.house import House, matched
from integration.scripts import answer_ok
from integration.served import Stage
from prometheus_client.parser import text_string_to_metric_families

stage = houses.stage
house = houses.house

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
DECISION = {
    *("request_id", "time", "path", "model", "grade", "prompt_tokens", "policy"),
    *("chosen", "reason", "candidates"),
}
CANDIDATE = {"backend", "state", "view", "matched_tokens", "cost"}
COST = {"wait_s", "miss_s", "decode_s", "total_s"}
CLASSES = {"hit", "cold", "evicted", "elsewhere", "unpredicted"}
OUTCOME = {
    "difference",
    *("status", "error", "cached_tokens", "predicted_tokens", "output_tokens"),
    *("ttft_s", "duration_s", "tokens"),
}
VERBS = {
    *("snapshot", "flush", "evict", "retain", "release", "demote", "offload"),
    *("restore", "policy", "budget"),
}


class TestDecisions:
    async def test_have_the_documented_shape(self, house: House) -> None:
        """Exactly these keys, one candidate for each backend, at once."""
        request_id, reply = await house.send([*range(100)])
        decision = await house.settled(request_id)
        assert set(decision) == {*DECISION, "attempts", "outcome"}
        assert [set(one) for one in decision["candidates"]] == [CANDIDATE] * 2
        assert all(set(one["cost"]) == COST for one in decision["candidates"])
        assert all(one["view"] == "mirror" for one in decision["candidates"])
        assert set(decision["outcome"]) == OUTCOME
        assert set(decision["outcome"]["tokens"]) == CLASSES
        assert (decision["grade"], decision["prompt_tokens"]) == ("exact", 100)
        assert reply.value("x-request-id") == request_id
        assert reply.value("x-warmroute-backend") == decision["chosen"]
        assert reply.value("x-warmroute-policy") == "expected_ttft"
        assert reply.value("x-warmroute-reason") == decision["reason"]

    async def test_are_listed_newest_first(self, house: House) -> None:
        """By number, by backend and by model; an unknown id is 404."""
        ids = [(await house.send([at] * 40))[0] for at in range(3)]
        _, answer = await house.proxy.admin("/api/decisions?limit=2")
        assert [one["request_id"] for one in answer["decisions"]] == ids[:0:-1]
        _, answer = await house.proxy.admin("/api/decisions?model=other")
        assert answer == {"decisions": []}
        status, answer = await house.proxy.admin("/api/decisions/none")
        assert (status, answer["error"]["code"]) == (404, "decision_not_found")

    async def test_explain_tells_what_then_happens(self, house: House) -> None:
        """The same decision but for time and id, and nothing is changed by asking."""
        prompt = [*range(1000)]
        await house.settled((await house.send(prompt))[0])
        longer = [*prompt, *range(5000, 5100)]
        told = await house.explain(longer)
        assert set(told) == DECISION
        again = await house.explain(longer)
        assert (matched(again), again["chosen"]) == (matched(told), told["chosen"])
        request_id, _ = await house.send(longer)
        happened = await house.settled(request_id)
        for key in DECISION - {"request_id", "time", "candidates"}:
            assert happened[key] == told[key], key
        assert matched(happened) == matched(told)
        assert told["reason"] == "prefix"
        assert happened["outcome"]["predicted_tokens"] == 992
        assert happened["outcome"]["cached_tokens"] == 992
        _, state = await house.proxy.admin("/api/state")
        assert state["tokens"]["prompt"] == 2100, "explain calls are not counted"

    async def test_of_an_unknown_model_is_the_refusal(self, house: House) -> None:
        """Explain answers as the data port would: 404 in OpenAI's shape."""
        body = {"model": "nobody", "prompt": [1, 2]}
        asked = {"path": "/v1/completions", "headers": {}, "body": body}
        status, told = await house.proxy.admin("/api/explain", "POST", json=asked)
        real = await house.proxy.request(post(body, "/v1/completions"))
        assert status == real.status == 404
        assert told == real.json()
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["code"] == "model_not_found"


class TestState:
    async def test_has_the_documented_shape(self, house: House) -> None:
        """Exactly these keys, for each backend and over all."""
        await house.settled((await house.send([*range(100)]))[0])
        _, state = await house.proxy.admin("/api/state")
        assert set(state) == {
            *("version", "policy", "uptime_s", "ready", "backends", "index"),
            *("tokens", "paid_twice_ratio", "queue", "shadow"),
            *("cache_killers", "warnings"),
        }
        assert set(state["tokens"]) == {"prompt", *CLASSES}
        assert set(state["index"]) == {"bytes", "cap_bytes", "blocks"}
        assert state["index"]["blocks"] == 6
        for backend in state["backends"]:
            assert (backend["engine"], backend["state"]) == ("vllm", "up")
            assert backend["block_size"] == 16
            assert set(backend["view"]) == {
                *("source", "blocks", "seq", "incarnation", "gaps", "replays", "lag_s")
            }
            assert backend["view"]["source"] == "mirror"
            load = {"requests": 0, "prefill_tokens": 0, "decodes": 0}
            assert backend["load"] == load
            assert set(backend["learned"]) == {"prefill_tokens_per_s", "itl_s"}
            assert set(backend["kv"]) == VERBS
            assert all(can is True or can for can in backend["kv"].values())

    async def test_view_is_a_tree_of_runs(self, house: House) -> None:
        """A shared beginning is one run, and what differs hangs below it."""
        request_id, _ = await house.send([*range(160), *([1] * 32)])
        name = (await house.settled(request_id))["chosen"]
        await house.settled((await house.send([*range(160), *([2] * 64)]))[0])
        _, tree = await house.proxy.admin(f"/api/view?backend={name}&depth=4")
        keys = {"hash", "tokens", "tiers", "hits", "last_used_s", "children"}
        (shared,) = tree["children"]
        assert set(shared) == keys
        assert (shared["tokens"], shared["tiers"]) == (160, ["gpu"])
        assert sorted(one["tokens"] for one in shared["children"]) == [32, 64]
        _, shallow = await house.proxy.admin(f"/api/view?backend={name}&depth=1")
        assert [one["tokens"] for one in shallow["children"]] == [160]
        status, answer = await house.proxy.admin("/api/view?backend=none")
        assert (status, answer["error"]["code"]) == (404, "backend_not_found")

    async def test_metrics_parse_and_are_all_there(self, house: House) -> None:
        """Every documented metric is exposed, and no undocumented one."""
        await house.settled((await house.send([*range(100)]))[0])
        _, text = await house.proxy.admin("/metrics")
        families = {one.name: one for one in text_string_to_metric_families(text)}
        found = {name for name in families if name.startswith("warmroute_")}
        rows = re.findall(r"^\| `(warmroute_\w+)` \|", DOCS.read_text(), re.M)
        assert found == {name.removesuffix("_total") for name in rows}
        (sample,) = families["warmroute_requests"].samples
        assert (sample.labels["model"], sample.labels["code"]) == ("m", "200")
        assert sample.value == 1
        assert "process_resident_memory_bytes" in families


class TestLevers:
    async def test_backends_are_added_drained_and_removed(self, house: House) -> None:
        """Each lever acts at once, and says so in the documented shape."""
        proxy, url = house.proxy, house.engines[0].url
        added = {"name": "c", "url": url, "engine": "vllm"}
        assert await proxy.admin("/api/backends", "POST", json=added) == (
            201,
            {"name": "c"},
        )
        await proxy.logged("backend_up", backend="c")
        drained = await proxy.admin("/api/backends/c/drain", "POST")
        assert drained == (200, {"name": "c", "state": "draining"})
        told = await house.explain([*range(100)])
        states = {one["backend"]: one["state"] for one in told["candidates"]}
        assert states == {"a": "up", "b": "up", "c": "draining"}
        assert told["chosen"] in ("a", "b")
        removed = await proxy.admin("/api/backends/c", "DELETE")
        assert removed == (200, {"name": "c", "removed": True})
        _, answer = await proxy.admin("/api/backends")
        assert [one["name"] for one in answer["backends"]] == ["a", "b"]
        status, answer = await proxy.admin("/api/backends/c", "DELETE")
        assert (status, answer["error"]["code"]) == (404, "backend_not_found")

    @pytest.mark.parametrize(
        "entry", [{"url": "http://h", "name": "a"}, {"url": 3}, {"uri": "http://h"}]
    )
    async def test_a_wrong_backend_is_refused(
        self, house: House, entry: dict[str, Any]
    ) -> None:
        status, answer = await house.proxy.admin("/api/backends", "POST", json=entry)
        assert (status, answer["error"]["code"]) == (400, "backend_invalid")


class TestGuard:
    async def test_beyond_loopback_the_token_is_needed(self, stage: Stage) -> None:
        """Only the probes are open to those who do not bring it."""
        engine = await stage.engine(answer_ok)
        token = {"WARMROUTE_ADMIN_TOKEN": "secret"}
        proxy = await stage.spawn(engine, admin="0.0.0.0:0", environ=token)
        await proxy.ready(1)
        for path in ("/", "/metrics", "/api/state", "/api/decisions/x"):
            status, answer = await proxy.admin(path)
            assert (status, answer["error"]["code"]) == (401, "admin_token_wrong")
        status, _ = await proxy.admin("/api/reload", "POST")
        assert status == 401
        assert (await proxy.admin("/livez"))[0] == 200
        assert (await proxy.admin("/readyz"))[0] == 200
        headers = {"authorization": "Bearer secret"}
        status, state = await proxy.admin("/api/state", headers=headers)
        assert (status, state["ready"]) == (200, True)
        assert "secret" not in str(proxy.log)

    async def test_beyond_loopback_no_token_is_an_error(self, stage: Stage) -> None:
        """Nothing starts that anybody on the network could command."""
        proxy = await stage.spawn(await stage.engine(answer_ok), admin="0.0.0.0:0")
        assert await proxy.ended() == 2
        assert "admin_token" in proxy.stderr

    async def test_web_pages_have_no_way_in(self, house: House) -> None:
        """A forged host name is refused, and so is a POST that a form can send."""
        status, answer = await house.proxy.admin("/", headers={"host": "evil.example"})
        assert (status, answer["error"]["code"]) == (403, "host_not_allowed")
        status, answer = await house.proxy.admin(
            "/api/reload", "POST", json=None, data={"a": "b"}
        )
        assert (status, answer["error"]["code"]) == (415, "content_type_not_json")
