"""Who may serve what: health, breakers and models together."""

import pytest
from unit import fleet_rig
from unit.fleet_rig import Make, Rig, entry

from warmroute.policies.errors import ClientError
from warmroute.proxy.fleet.routes import MAX_CACHED

make = fleet_rig.make


class TestRouting:
    async def test_is_one_lookup_until_something_changes(self, make: Make) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="m")
        found = rig.fleet.routable("m")
        assert rig.fleet.routable("m") is found
        rig.fleet.drain("b")
        assert rig.names("m") == ["a"]

    async def test_an_unknown_model_is_404_with_the_known_ones(
        self, make: Make
    ) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="llama,qwen", b="qwen")
        with pytest.raises(ClientError) as caught:
            rig.fleet.routable("lama")
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")
        for part in (
            "'lama'",
            "known: llama, qwen",
            "did you mean 'llama'",
            "/v1/models",
        ):
            assert part in caught.value.message

    async def test_the_404_is_short_whatever_is_asked_for(self, make: Make) -> None:
        rig = make(entry("a"))
        rig.put_up(a=",".join(f"m{number:03}" for number in range(50)))
        with pytest.raises(ClientError, match=r"m019.*and 30 more") as caught:
            rig.fleet.routable("x" * 100_000)
        assert len(caught.value.message) < 600

    async def test_a_backend_whose_models_are_unknown_takes_any(
        self, make: Make
    ) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="")
        assert rig.names("x") == ["b"]
        assert rig.names("m") == ["a", "b"]

    async def test_a_model_of_backends_that_are_down_is_503_not_404(
        self, make: Make
    ) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="n")
        rig["a"].vitals.fail_probe(rig.clock(), refused=True)
        rig.fleet._routes.forget()
        with pytest.raises(ClientError, match=r"'m' \(1 down\)") as caught:
            rig.fleet.routable("m")
        assert (caught.value.status, caught.value.code) == (503, "no_healthy_backend")
        assert caught.value.retry_after_s == 1

    async def test_drained_and_missing_backends_are_503(self, make: Make) -> None:
        rig = make(entry("a"))
        rig.put_up(a="m")
        rig.fleet.drain("a")
        assert (rig["a"].state, rig.fleet.is_ready) == ("draining", False)
        with pytest.raises(ClientError, match="1 draining"):
            rig.fleet.routable("m")
        await rig.fleet.remove("a")
        with pytest.raises(ClientError, match="none configured"):
            rig.fleet.routable(None)

    async def test_many_model_names_are_forgotten(self, make: Make) -> None:
        rig = make(entry("a"))
        rig.put_up(a="")
        for number in range(3 * MAX_CACHED):
            rig.fleet.routable(f"m{number}")
        assert repr(rig.fleet._routes) == f"<Routes {MAX_CACHED} cached, 1 backends>"


class TestBreaker:
    async def trip(self, rig: Rig, name: str) -> None:
        for _ in range(5):
            rig.fleet.failed(rig[name], "status 500")

    async def test_opens_after_failures_and_offers_one_trial(self, make: Make) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="m")
        await self.trip(rig, "a")
        assert rig.names("m") == ["b"]
        rig.clock.now += 6.1
        assert rig.names("m") == ["a", "b"]
        rig.fleet.dispatched(rig["a"])
        assert rig.names("m") == ["b"]
        rig.fleet.abandoned(rig["a"])
        assert rig.names("m") == ["a", "b"]
        rig.fleet.dispatched(rig["a"])
        rig.fleet.succeeded(rig["a"])
        assert rig.names("m") == ["a", "b"]
        assert rig["a"].breaker.state == "closed"

    async def test_a_failed_trial_opens_it_for_longer(self, make: Make) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="m")
        await self.trip(rig, "a")
        rig.clock.now += 6.1
        assert rig.names("m") == ["a", "b"]
        rig.fleet.dispatched(rig["a"])
        rig.fleet.failed(rig["a"], "reset")
        rig.clock.now += 6.1
        assert rig.names("m") == ["b"]
        rig.clock.now += 6.1
        assert rig.names("m") == ["a", "b"]

    async def test_never_opens_for_the_last_backend(self, make: Make) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="m")
        await self.trip(rig, "a")
        await self.trip(rig, "b")
        assert rig["b"].breaker.state == "closed"
        assert rig.names("m") == ["b"]

    async def test_an_open_one_serves_what_nobody_else_can(self, make: Make) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m,only", b="m")
        await self.trip(rig, "a")
        assert (rig.names("m"), rig.names("only")) == (["b"], ["a"])
        rig["b"].vitals.fail_probe(rig.clock(), refused=True)
        rig.fleet._routes.forget()
        assert rig.names("m") == ["a"]

    async def test_progress_between_failures_keeps_it_closed(self, make: Make) -> None:
        rig = make(entry("a"), entry("b"))
        rig.put_up(a="m", b="m")
        for _ in range(10):
            rig.fleet.failed(rig["a"], "timeout")
            rig.fleet.progressed(rig["a"])
        assert rig["a"].breaker.state == "closed"
