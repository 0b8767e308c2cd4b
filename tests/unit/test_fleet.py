"""The fleet against fake engines on real sockets."""

import asyncio
from typing import Any

import pytest
from unit import fleet_rig
from unit.fake_engine import FakeEngine
from unit.fleet_rig import Make, entry

from warmroute.proxy.fleet.probe import Report

engine = fleet_rig.engine
other = fleet_rig.other
make = fleet_rig.make


class TestDiscovery:
    async def test_learns_engine_models_and_shape(
        self, make: Make, engine: Any, other: Any
    ) -> None:
        rig = make(entry("a", engine), entry("b", other))
        await rig.until_up("a", "b")
        a, b = rig["a"], rig["b"]
        assert (a.engine, a.block_size, a.capacity_tokens) == ("vllm", 32, 3200)
        assert (b.engine, b.block_size, b.capacity_tokens) == ("sglang", 16, 8192)
        assert (rig.names("m"), rig.names("n")) == (["a", "b"], ["b"])
        assert {("facts", "a"), ("facts", "b")} <= set(rig.events)
        assert (a.candidate.speed.name, b.candidate.speed.name) == (
            "m|vllm|",
            "m,n|sglang|",
        )

    async def test_sends_the_key_with_every_probe(
        self, make: Make, engine: Any
    ) -> None:
        engine.key = "secret"
        rig = make(entry("a", engine, api_key="secret"))
        await rig.until_up("a")
        assert rig["a"].auth_header == (b"authorization", b"Bearer secret")
        assert (list(rig["a"].models), rig["a"].engine) == (["m"], "vllm")

    async def test_is_up_for_any_model_where_the_key_is_the_clients(
        self, make: Make, engine: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine.key = "the client's"
        rig = make(entry("a", engine, engine="vllm"))
        await rig.until_up("a")
        await engine.called("/health", 3)
        assert rig.names("whatever") == ["a"]
        complaints = [r for r in caplog.records if r.message == "backend_unreadable"]
        assert [r.__dict__["what"] for r in complaints] == ["models", "kv events"]

    async def test_one_probe_that_meets_this_process_is_enough(
        self, make: Make, engine: Any
    ) -> None:
        """However well the address did before, and whatever traffic says."""
        rig = make(entry("a", engine), interval_s=60, failures=100)
        await rig.until_up("a")
        rig.fleet.progressed(rig["a"])
        report = Report(rig["a"].adapter, is_self=True, detail="itself")
        rig.fleet._settle(rig["a"], report)
        assert rig["a"].state == "down"

    async def test_follows_a_lora_that_is_loaded(self, make: Make, engine: Any) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        speed = rig["a"].candidate.speed
        engine.models, engine.parents = ("m", "l"), {"l": "m"}
        await engine.called("/v1/models", 2)
        assert rig.names("l") == ["a"]
        assert rig["a"].models["l"].parent == "m"
        assert rig["a"].candidate.speed is speed

    async def test_the_configured_models_stand(self, make: Make, engine: Any) -> None:
        rig = make(entry("a", engine, models=["m", "x"]))
        await rig.until_up("a")
        assert list(rig["a"].models) == ["m", "x"]
        assert [model["owned_by"] for model in rig.fleet.models()] == [
            "vllm",
            "warmroute",
        ]

    async def test_shows_the_union_of_models_with_the_shortest_length(
        self, make: Make, engine: Any, other: Any
    ) -> None:
        rig = make(entry("a", engine), entry("b", other))
        await rig.until_up("a", "b")
        assert [model["id"] for model in rig.fleet.models()] == ["m", "n"]
        assert rig.fleet.models()[0]["max_model_len"] == 4096

    async def test_puts_the_engines_load_on_the_candidate(
        self, make: Make, engine: Any
    ) -> None:
        """Requests that wait and are not ours count as prompts like ours."""
        rig = make(entry("a", engine))
        await rig.until_up("a")
        rig.load.reserve(rig["a"].candidate, 100, 100, rig.clock())
        await engine.called("/metrics", 2)
        candidate = rig["a"].candidate
        assert (candidate.kv_usage, candidate.queued_tokens) == (0.25, 400)
        engine.bodies["/metrics"] = b""
        await engine.called("/metrics", 2)
        assert (candidate.kv_usage, candidate.queued_tokens) == (None, 0)
        assert rig["a"].block_size == 32

    async def test_takes_our_own_tokens_off_a_queue_told_in_tokens(
        self, make: Make, other: Any
    ) -> None:
        rig = make(entry("b", other))
        await rig.until_up("b")
        rig.load.reserve(rig["b"].candidate, 200, 150, rig.clock())
        await other.called("/v1/loads", 2)
        queued = sum(one.queued_tokens for one in rig["b"].candidates)
        assert queued == 450  # shared out to its two ranks


class TestProbing:
    async def test_start_waits_for_nobody(
        self, make: Make, engine: Any, other: Any
    ) -> None:
        """A hanging and a dead backend delay neither start nor their neighbour."""
        other.hanging = {"/health"}
        rig = make(
            entry("dead"), entry("hangs", other), entry("a", engine), timeout_s=60
        )
        await rig.fleet.start()
        assert rig.names() == ["dead", "hangs", "a"]
        await rig.until(lambda: rig["a"].state == "up")
        await rig.until(lambda: rig["dead"].state == "down")
        assert rig["hangs"].state == "starting"
        assert rig.names() == ["a"]

    async def test_slow_probes_take_it_down_and_one_good_one_up(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        engine.statuses["/health"] = 503
        failed = engine.calls["/health"]
        await rig.until(lambda: rig["a"].state == "down")
        assert engine.calls["/health"] - failed in (3, 4)
        del engine.statuses["/health"]
        await rig.until(lambda: rig["a"].state == "up")
        assert rig["a"].incarnation == 1

    async def test_progress_keeps_it_up_whatever_its_probe_says(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        engine.statuses["/health"] = 503
        rig.fleet.progressed(rig["a"])
        await engine.called("/health", 6)
        assert rig["a"].state == "up"
        rig.clock.now += 60
        await rig.until(lambda: rig["a"].state == "down")

    async def test_a_generated_token_unmasks_an_engine_that_hangs_politely(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine), generate=True, timeout_s=0.05)
        await rig.until_up("a")
        engine.hanging = {"/v1/completions"}
        await rig.until(lambda: rig["a"].state == "down")
        assert engine.posted[-1] == {"prompt": "Hi", "max_tokens": 1, "model": "m"}

    async def test_no_token_is_generated_while_traffic_moves(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine), generate=True)
        rig.fleet.progressed(rig["a"])
        await rig.until_up("a")
        await engine.called("/health", 2)
        assert engine.calls["/v1/completions"] == 0

    async def test_health_checks_never_touch_our_load(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        rig.load.reserve(rig["a"].candidate, 100, 60, rig.clock())
        await engine.called("/health", 3)
        candidate = rig["a"].candidate
        assert (candidate.requests, candidate.prefill_tokens) == (1, 60)

    async def test_an_adapter_that_raises_takes_nothing_else_along(
        self, make: Make, engine: Any, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def explode(*_: object) -> None:
            raise RuntimeError("bad plugin")

        rig = make(entry("a", engine, engine="vllm"), entry("b", other))
        monkeypatch.setattr(type(rig["a"].adapter), "facts", explode)
        await rig.until_up("a", "b")
        assert (rig["a"].block_size, rig["b"].block_size) == (None, 16)

    async def test_close_ends_every_task(self, make: Make, engine: Any) -> None:
        before = asyncio.all_tasks()
        rig = make(entry("a", engine), entry("dead"))
        await rig.until_up("a")
        await rig.fleet.close()
        mine = asyncio.all_tasks() - before
        assert not [task for task in mine if task.get_name().startswith("probe")]


class TestIncarnations:
    async def test_a_restart_gives_a_new_incarnation_and_a_fresh_candidate(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        old = rig["a"].candidate
        reservation = rig.load.reserve(old, 100, 100, rig.clock())
        await engine.stop()
        await rig.until(lambda: rig["a"].state == "down")
        engine.boot += 1
        await engine.start()
        await rig.until(lambda: rig["a"].state == "up")
        assert rig.events.count(("restarted", "a")) == 1
        assert rig["a"].incarnation == 2
        reservation.release(rig.clock())
        assert rig["a"].candidate is not old
        assert rig["a"].candidate.requests == 0

    async def test_a_restart_that_nobody_saw_is_told_by_the_boot_id(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        engine.boot += 1
        await rig.until(lambda: rig["a"].incarnation == 2)
        assert ("changed", "a") not in rig.events[
            rig.events.index(("changed", "a")) + 1 :
        ]

    async def test_an_engine_without_boot_id_is_new_after_a_refused_request(
        self, make: Make
    ) -> None:
        engine = await FakeEngine("openai").start()
        rig = make(entry("a", engine), interval_s=60)
        await rig.until_up("a")
        rig.fleet.failed(rig["a"], "refused")
        await rig.until(lambda: rig["a"].incarnation == 2)
        await rig.fleet.close()
        await engine.stop()

    async def test_flapping_of_the_breaker_is_no_restart(
        self, make: Make, engine: Any, other: Any
    ) -> None:
        rig = make(entry("a", engine), entry("b", other))
        await rig.until_up("a", "b")
        for _ in range(5):
            rig.fleet.failed(rig["a"], "reset")
        await rig.until(lambda: rig["a"].breaker.state == "half_open")
        rig.fleet.succeeded(rig["a"])
        assert (rig["a"].breaker.state, rig["a"].incarnation) == ("closed", 1)

    async def test_another_engine_on_the_same_address_is_detected_anew(
        self, make: Make, engine: Any
    ) -> None:
        rig = make(entry("a", engine))
        await rig.until_up("a")
        await engine.stop()
        await rig.until(lambda: rig["a"].state == "down")
        engine.kind = engine.owner = "sglang"
        await engine.start()
        await rig.until(lambda: rig["a"].state == "up")
        assert (rig["a"].engine, rig["a"].block_size) == ("sglang", 16)
