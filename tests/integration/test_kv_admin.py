"""``POST /api/kv/{verb}``: the caches of real engines, steered through the proxy."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from integration.engine_fleet import Fleet, prompt, running_fleet
from integration.served import Stage

from warmroute.adapters.kv_control import VERBS
from warmroute.proxy.cli import main
from warmroute.proxy.demo.child import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

FULL = 96  # six blocks of sixteen in a prompt of a hundred tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Start two engines once: that takes longer than all the tests."""
    folder = tmp_path_factory.mktemp("fleet")
    async with running_fleet(folder, 2, "--host-blocks", "32") as fleet:
        yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(shared: Fleet) -> Fleet:
    """Give a test engines that are as new."""
    snapshots = await shared.kv("snapshot")
    hashes = {block["hash"] for one in snapshots.values() for block in one["blocks"]}
    if hashes:
        await shared.kv("release", hashes=sorted(hashes))
    await shared.kv("flush")
    await shared.kv("policy", name="lru")
    await shared.kv("budget", method="full")
    return shared


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


class TestVerbs:
    async def test_a_flush_empties_the_view_before_it_answers(
        self, fleet: Fleet
    ) -> None:
        for seed in range(3):
            await fleet.send(prompt(seed))
        held = [await fleet.matched(prompt(seed)) for seed in range(3)]
        assert all(max(one.values()) == FULL for one in held)
        results = await fleet.kv("flush")
        assert set(results) == {"a", "b"}
        assert all(one["flushed"] for one in results.values())
        for seed in range(3):
            assert set((await fleet.matched(prompt(seed))).values()) == {0}

    async def test_an_eviction_is_seen_at_once_and_only_there(
        self, fleet: Fleet
    ) -> None:
        name = (await fleet.send(prompt(1)))["backend"]
        results = await fleet.kv(
            "evict", token_ids=prompt(1), skip_blocks=2, backend=name
        )
        assert len(results[name]["evicted"]) == 4
        assert set(results) == {name}
        assert (await fleet.matched(prompt(1)))[name] == 32
        assert (await fleet.send(prompt(1)))["cached"] == 32

    async def test_a_dry_run_counts_and_changes_nothing(self, fleet: Fleet) -> None:
        name = (await fleet.send(prompt(2)))["backend"]
        results = await fleet.kv(
            "evict", token_ids=prompt(2), skip_blocks=1, dry_run=True
        )
        there = {"dry_run": True, "named": 5, "resident": 5, "in_use": 0}
        assert results.pop(name) == {**there, "tokens": 80, "block_size": 16}
        (other,) = results.values()
        assert (other["named"], other["resident"]) == (5, 0)
        assert (await fleet.send(prompt(2)))["cached"] == FULL

    async def test_a_dry_run_finds_a_text(self, fleet: Fleet) -> None:
        text = "a text that is longer than one block of sixteen tokens"
        await fleet.send(text)  # type: ignore[arg-type]
        results = await fleet.kv("evict", prompt=text, dry_run=True)
        assert sorted(one["resident"] for one in results.values()) == [0, 3]

    async def test_an_engine_that_cannot_restore_into_requests_says_so(
        self, fleet: Fleet
    ) -> None:
        results = await fleet.kv("restore", request_id="r")
        assert {code(one) for one in results.values()} == {"kv_verb_unsupported"}

    async def test_a_dry_run_says_what_the_engine_lacks(self, fleet: Fleet) -> None:
        """A policy is not tried; its name is checked, and no budget can be."""
        results = await fleet.kv("policy", name="nope", dry_run=True)
        assert {code(one) for one in results.values()} == {"kv_policy_invalid"}
        results = await fleet.kv("budget", method="nope", dry_run=True)
        assert {code(one) for one in results.values()} == {"kv_dry_run_unsupported"}
        results = await fleet.kv("restore", request_id="r", dry_run=True)
        assert {code(one) for one in results.values()} == {"kv_dry_run_unsupported"}
        results = await fleet.kv("policy", name="lfu", dry_run=True)
        assert all(one["dry_run"] for one in results.values())
        assert {one["name"] for one in (await fleet.kv("policy")).values()} == {"lru"}

    async def test_a_prefix_of_the_view_is_named_by_its_hash(
        self, fleet: Fleet
    ) -> None:
        name = (await fleet.send(prompt(3)))["backend"]
        _, tree = await fleet.proxy.admin(f"/api/view?backend={name}")
        (child,) = tree["children"]
        results = await fleet.kv("retain", prefix=child["hash"], ttl_s=60)
        assert results[name]["retained"] == 6
        other = "ab".replace(name, "")
        assert code(results[other]) == "prefix_not_cached"
        await fleet.kv("flush")
        assert (await fleet.matched(prompt(3)))[name] == FULL
        assert (await fleet.kv("release", prefix=child["hash"]))[name]["changed"] == 6

    async def test_a_session_names_its_newest_prompt(self, fleet: Fleet) -> None:
        await fleet.send(prompt(4), "alice")
        name = (await fleet.send(prompt(5), "alice"))["backend"]
        results = await fleet.kv("offload", session="alice", backend=name)
        assert results[name] == {"changed": 6, "named": 6}
        await fleet.proxy.until(
            f"/api/view?backend={name}",
            lambda tree: any(one["tiers"] == ["host"] for one in tree["children"]),
        )
        results = await fleet.kv("restore", session="alice", backend=name)
        assert results[name]["changed"] == 6
        assert (await fleet.send(prompt(5)))["cached"] == FULL

    async def test_policy_and_budget_are_read_and_set_everywhere(
        self, fleet: Fleet
    ) -> None:
        assert {one["name"] for one in (await fleet.kv("policy")).values()} == {"lru"}
        results = await fleet.kv("policy", name="lfu")
        assert {one["name"] for one in results.values()} == {"lfu"}
        results = await fleet.kv("budget", method="h2o", share=0.5)
        assert {one["method"] for one in results.values()} == {"h2o"}

    async def test_the_state_tells_every_verb(self, fleet: Fleet) -> None:
        _, state = await fleet.proxy.admin("/api/state")
        for backend in state["backends"]:
            assert backend["kv"] == dict.fromkeys(VERBS, True)


async def test_a_mirrored_view_follows_what_was_done(tmp_path: Path) -> None:
    """Without events nobody else would tell it; the state says what is lacking."""
    async with running_fleet(tmp_path, 1, events=False) as fleet:
        await fleet.send(prompt(1), "bob")
        assert await fleet.matched(prompt(1)) == {"a": FULL}
        assert (
            code((await fleet.kv("evict", session="bob"))["a"]) == "kv_hashes_unknown"
        )
        await fleet.kv("evict", token_ids=prompt(1), skip_blocks=2)
        assert await fleet.matched(prompt(1)) == {"a": 0}
        await fleet.send(prompt(1))
        await fleet.kv("flush")
        assert await fleet.matched(prompt(1)) == {"a": 0}
        _, state = await fleet.proxy.admin("/api/state")
        kv = state["backends"][0]["kv"]
        assert "--host-blocks" in kv["offload"]
        assert kv["evict"] is True


async def test_a_session_is_found_in_blocks_of_every_size(tmp_path: Path) -> None:
    """Whichever engine has its prompt; one that is dead is said to be."""
    settings: dict[str, Any] = {"block_sizes": (16, 32), "policy": "round_robin"}
    async with running_fleet(tmp_path, 2, **settings) as fleet:
        for seed, session in enumerate(["bob", "carol"]):
            name = (await fleet.send(prompt(seed), session))["backend"]
            results = await fleet.kv("evict", session=session)
            other = "ab".replace(name, "")
            assert len(results[name]["evicted"]) == {"a": 6, "b": 3}[name]
            assert code(results[other]) == "prefix_not_cached"
        await fleet.engines[1].kill()
        await fleet.proxy.until(
            "/api/state", lambda state: state["backends"][1]["state"] == "down"
        )
        await fleet.send(prompt(7), "dora")
        results = await fleet.kv("evict", session="dora")
        assert len(results["a"]["evicted"]) == 6
        assert code(results["b"]) == "backend_unavailable"
        assert code((await fleet.kv("flush"))["b"]) == "backend_unavailable"


async def test_an_engine_that_never_answered_is_unavailable(tmp_path: Path) -> None:
    """What it supports is not known; that it does not answer is."""
    dead = {"name": "a", "url": f"http://127.0.0.1:{free_port()}"}
    stage = Stage(tmp_path)
    try:
        proxy = await stage.spawn(backends=[dead])
        await proxy.logged("started")
        await proxy.until(
            "/api/state", lambda state: state["backends"][0]["state"] == "down"
        )
        status, answer = await proxy.admin("/api/kv/flush", "POST", json={})
        assert (status, code(answer["results"]["a"])) == (200, "backend_unavailable")
    finally:
        await stage.close()


class TestBadInput:
    async def test_wrong_orders_are_refused_and_harm_nobody(self, fleet: Fleet) -> None:
        """Each with a status, a code, and words that help."""
        await fleet.send(prompt(6))
        cases: list[tuple[str, Any, int, str, str]] = [
            ("nothing", b"{}", 404, "kv_verb_unknown", "snapshot"),
            ("flush", b'{"backend": "z"}', 404, "backend_not_found", "known: a, b"),
            ("flush", b"{", 400, "kv_request_invalid", "JSON"),
            ("flush", b"[]", 400, "kv_request_invalid", "object"),
            ("flush", b"\xff", 400, "kv_request_invalid", "JSON"),
            ("flush", b'{"x": 1}', 400, "kv_request_invalid", "`x`"),
            ("flush", b'{"dry_run": 1}', 400, "kv_request_invalid", "dry_run"),
            ("flush", b'{"session": "s"}', 400, "kv_request_invalid", "takes none"),
            ("evict", b"{}", 400, "kv_request_invalid", "exactly one"),
            ("evict", b'{"prefix": "xyz"}', 400, "kv_request_invalid", "16 hex"),
            ("evict", _both(), 400, "kv_request_invalid", "exactly one"),
            ("evict", _skipping(), 400, "kv_request_invalid", "leave out skip_blocks"),
            ("evict", b'{"prefix": "%016d"}' % 7, 404, "prefix_not_found", "view"),
            ("evict", b'{"session": "no"}', 404, "session_not_found", "'no'"),
            ("evict", _hashes(10**6), 400, "kv_request_invalid", "65536"),
            ("evict", _hashes(1, 2**70), 400, "kv_request_invalid", "64 bits"),
            ("retain", b'{"hashes": [1]}', 400, "kv_request_invalid", "ttl_s"),
            ("retain", b'{"hashes": [1], "ttl_s": 1e9}', 400, "kv_request_invalid", ""),
            ("evict", b"[" * 100_000, 400, "kv_request_invalid", "JSON"),
        ]
        for verb, body, status, code_, words in cases:
            given, answer = await fleet.proxy.admin(
                f"/api/kv/{verb}",
                "POST",
                json=None,
                data=io.BytesIO(body),
                headers={"Content-Type": "application/json"},
            )
            assert (given, code(answer)) == (status, code_), (verb, body[:60], answer)
            assert words in answer["error"]["message"], answer
        assert (await fleet.send(prompt(6)))["cached"] == FULL

    async def test_foreign_hosts_forms_and_wrong_methods_are_refused(
        self, fleet: Fleet
    ) -> None:
        ask = fleet.proxy.admin
        foreign = {"Host": "evil.example"}
        status, answer = await ask("/api/kv/flush", "POST", headers=foreign)
        assert (status, code(answer)) == (403, "host_not_allowed")
        status, answer = await ask("/api/kv/flush", "POST", json=None, data={"a": "b"})
        assert (status, code(answer)) == (415, "content_type_not_json")
        status, answer = await ask("/api/kv/flush")
        assert (status, code(answer)) == (405, "method_not_allowed")

    async def test_the_engines_own_door_refuses_the_same(self, fleet: Fleet) -> None:
        """What the proxy would stop, an engine stops by itself."""
        many, few = _hashes(10**6), _hashes(70_000)
        status, answer = await fleet.direct(0, "evict", data=io.BytesIO(many))
        assert (status, code(answer)) == (415, "content_type_not_json")
        kind = {"Content-Type": "application/json"}
        for body, status in ((many, 413), (b"{", 400), (few, 400)):
            given, answer = await fleet.direct(
                0, "evict", data=io.BytesIO(body), headers=kind
            )
            assert given == status, answer
        given, answer = await fleet.direct(
            0, "flush", json={}, headers={"Host": "evil.example"}
        )
        assert (given, code(answer)) == (403, "host_not_allowed")

    async def test_no_more_is_retained_than_the_cap_allows(self, fleet: Fleet) -> None:
        """Half of 64 blocks; the head of the chain is what stays."""
        long = prompt(7, 40 * 16 + 1)
        name = (await fleet.send(long))["backend"]
        results = await fleet.kv("retain", token_ids=long, ttl_s=60, backend=name)
        cap = results[name]["cap"]
        assert results[name] == {
            "retained": cap, "named": 40, "total": cap, "cap": cap
        }  # fmt: skip
        assert cap == 32
        results = await fleet.kv("retain", token_ids=prompt(8), ttl_s=60, backend=name)
        assert results[name]["retained"] == 0
        assert (await fleet.send(prompt(9, 400)))["cached"] == 0

    async def test_of_two_orders_at_once_one_is_refused(self, fleet: Fleet) -> None:
        """The second is told which one is under way; the engine sees one of them."""
        await fleet.send(prompt(1))
        orders = [
            fleet.kv("policy", name="lfu", backend="a"),
            fleet.kv("policy", name="arc", backend="a"),
            fleet.kv("flush", backend="a"),
        ]
        answers = [one["a"] for one in await asyncio.gather(*orders)]
        refused = [one for one in answers if "error" in one]
        assert len(refused) < len(answers)
        assert all(code(one) == "kv_conflict" for one in refused)
        assert all("is under way on a" in one["error"]["message"] for one in refused)
        name = (await fleet.kv("policy"))["a"]["name"]
        done = [one.get("name") for one in answers[:2] if "error" not in one]
        assert name in (done or ["lru"])
        await fleet.send(prompt(1))

    async def test_the_admin_token_is_wanted(
        self, fleet: Fleet, tmp_path: Path
    ) -> None:
        stage = Stage(tmp_path)
        try:
            await self._try_tokens(stage, fleet)
        finally:
            await stage.close()

    @staticmethod
    async def _try_tokens(stage: Stage, fleet: Fleet) -> None:
        proxy = await stage.spawn(
            backends=fleet.proxy.settings["backends"],
            environ={"WARMROUTE_ADMIN_TOKEN": "secret"},
        )
        await proxy.ready(2)
        wrongs: list[dict[str, str]] = [{}, {"Authorization": "Bearer wrong"}]
        for wrong in wrongs:
            status, answer = await proxy.admin("/api/kv/flush", "POST", headers=wrong)
            assert (status, code(answer)) == (401, "admin_token_wrong")
        right = {"Authorization": "Bearer secret"}
        status, answer = await proxy.admin("/api/kv/flush", "POST", headers=right)
        assert (status, answer["results"]["a"]["flushed"]) == (200, True)


class TestCommand:
    async def test_it_asks_the_running_proxy(
        self,
        fleet: Fleet,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Tables for people, JSON for programs, and exit codes for both."""
        monkeypatch.delenv("WARMROUTE_ADMIN_TOKEN", raising=False)
        name = (await fleet.send(prompt(1), "alice"))["backend"]
        host, port = fleet.proxy.address("admin")
        url = f"{host}:{port}"

        async def run(*words: str) -> tuple[int, str]:
            code = await asyncio.to_thread(main, ["kv", *words, "--admin", url])
            printed = capsys.readouterr()
            return code, printed.out + printed.err

        status, text = await run("stats")
        assert status == 0
        assert text.splitlines()[0].split()[:3] == ["backend", "engine", "state"]
        status, text = await run("snapshot", "--json")
        blocks = json.loads(text)["results"][name]["blocks"]
        assert (status, len(blocks)) == (0, 6)
        words = ("retain", "--session", "alice", "--backend", name, "--ttl", "9")
        status, text = await run(*words)
        assert (status, text.splitlines()[1].split()) == (
            0,
            [name, "6", "6", "6", "32"],
        )
        number = str(blocks[0]["hash"])
        status, text = await run("release", "--hash", number, "--hash", "12")
        assert (status, text.count("2")) == (0, 2)
        tokens = ",".join(map(str, prompt(1)))
        status, text = await run("evict", "--tokens", tokens, "--dry-run")
        assert status == 0
        assert "resident" in text
        status, text = await run("evict", "--session", "nobody")
        assert (status, "no prompt of session 'nobody'" in text) == (1, True)
        status, text = await run("policy", "--name", "nonsense")
        assert status == 1
        assert "nonsense" in text


def _hashes(count: int, first: int = 2**62) -> bytes:
    return json.dumps({"hashes": list(range(first, first + count))}).encode()


def _skipping() -> bytes:
    return json.dumps({"session": "s", "skip_blocks": 2}).encode()


def _both() -> bytes:
    return json.dumps({"session": "s", "prompt": "p"}).encode()
