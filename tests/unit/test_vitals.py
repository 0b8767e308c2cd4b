"""Life and restart of a backend, judged without any network."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.proxy.fleet.vitals import Vitals

WINDOW_S = 15.0


def make(boot_id: str | None = "1") -> Vitals:
    """Make the vitals of a backend that is up."""
    vitals = Vitals(failures=3, window_s=WINDOW_S)
    assert not vitals.pass_probe(boot_id)
    return vitals


class TestLife:
    def test_starts_until_the_first_probe_ends(self) -> None:
        for refused in (True, False):
            vitals = Vitals(3, WINDOW_S)
            assert vitals.life == "starting"
            vitals.fail_probe(0.0, refused)
            assert vitals.life == "down"

    def test_goes_down_after_failures_in_a_row_and_up_after_one_success(self) -> None:
        vitals = make()
        for expected in ("up", "up", "down"):
            vitals.fail_probe(100.0, refused=False)
            assert vitals.life == expected
        vitals.pass_probe("1")
        assert repr(vitals) == "<Vitals up [failed: 0/3]>"

    def test_one_probe_that_met_the_prober_itself_is_enough(self) -> None:
        """What traffic moved there went in a circle."""
        vitals = make()
        vitals.progress_at = 100.0
        vitals.condemn()
        assert vitals.life == "down"

    def test_progress_on_traffic_outranks_slow_probes(self) -> None:
        """A long prefill makes /health late, and is no reason to leave."""
        vitals = make()
        vitals.progress_at = 100.0
        for _ in range(10):
            vitals.fail_probe(100.0 + WINDOW_S, refused=False)
        assert vitals.life == "up"
        vitals.fail_probe(101.0 + WINDOW_S, refused=False)
        assert vitals.life == "down"

    def test_progress_brings_back_what_slow_probes_took_down(self) -> None:
        vitals = make()
        for _ in range(3):
            vitals.fail_probe(100.0, refused=False)
        vitals.progress_at = 101.0
        vitals.fail_probe(101.0, refused=False)
        assert vitals.life == "up"

    def test_one_refused_probe_is_enough_without_progress(self) -> None:
        vitals = make()
        vitals.fail_probe(100.0, refused=True)
        assert vitals.life == "down"

    def test_refusals_in_a_row_outrank_old_streams(self) -> None:
        """A listener that is gone stays gone while the last streams drain."""
        vitals = make()
        vitals.progress_at = 100.0
        vitals.fail_probe(100.0, refused=True)
        assert vitals.life == "up"
        vitals.fail_probe(100.0, refused=True)
        assert vitals.life == "down"
        vitals.fail_probe(100.0, refused=False)
        assert vitals.life == "down"

    def test_a_refused_probe_confirms_refused_traffic(self) -> None:
        vitals = make()
        vitals.progress_at = 100.0
        vitals.refuse_traffic()
        assert vitals.life == "up"
        vitals.fail_probe(100.0, refused=True)
        assert vitals.life == "down"


class TestRestart:
    def test_a_new_boot_id_is_a_restart_even_if_nobody_saw_it_down(self) -> None:
        vitals = make("1")
        assert vitals.pass_probe("2")
        assert not vitals.pass_probe("2")

    def test_the_same_boot_id_is_none_whatever_happened_between(self) -> None:
        vitals = make("1")
        vitals.refuse_traffic()
        for _ in range(5):
            vitals.fail_probe(100.0, refused=True)
        assert vitals.is_doubted()
        assert not vitals.pass_probe("1")
        assert not vitals.is_doubted()

    @pytest.mark.parametrize("before", [None, "1"])
    def test_without_a_boot_id_down_and_up_is_a_restart(
        self, before: str | None
    ) -> None:
        vitals = make(before)
        for _ in range(3):
            vitals.fail_probe(100.0, refused=False)
        assert vitals.pass_probe(None)
        assert not vitals.pass_probe("2")

    def test_without_a_boot_id_refused_traffic_and_a_good_probe_is_one(self) -> None:
        vitals = make(None)
        vitals.refuse_traffic()
        assert vitals.pass_probe(None)
        assert not vitals.pass_probe(None)

    @pytest.mark.parametrize("boot_id", [None, "1"])
    def test_slow_probes_are_none(self, boot_id: str | None) -> None:
        vitals = make(boot_id)
        for _ in range(2):
            vitals.fail_probe(100.0, refused=False)
        assert not vitals.pass_probe(boot_id)

    def test_a_boot_id_that_was_not_told_once_is_none(self) -> None:
        vitals = make("1")
        assert not vitals.pass_probe(None)
        assert not vitals.pass_probe("1")

    def test_the_first_start_is_none(self) -> None:
        vitals = Vitals(3, WINDOW_S)
        for _ in range(5):
            vitals.fail_probe(0.0, refused=True)
        assert not vitals.pass_probe(None)

    def test_several_processes_behind_one_address_are_told_apart_from_restarts(
        self,
    ) -> None:
        vitals = make("1")
        restarts = [vitals.pass_probe(boot_id) for boot_id in "21212121"]
        assert restarts == [True] + [False] * 7
        assert vitals.is_mixed


@given(st.lists(st.sampled_from(["pass", "slow", "refused", "traffic"]), max_size=30))
def test_every_change_of_a_process_is_seen_once(events: list[str]) -> None:
    """With boot ids, restarts counted = boot ids met, whatever else happens."""
    vitals, boots, seen, restarts = Vitals(3, WINDOW_S), 0, 0, 0
    for event in events:
        if event == "pass":
            restarted = vitals.pass_probe(str(boots))
            restarts += restarted
            assert vitals.life == "up"
            seen = boots
        elif event == "traffic":
            vitals.refuse_traffic()
        else:
            vitals.fail_probe(100.0, event == "refused")
            boots += event == "refused" and vitals.boot_id == str(boots)
        assert restarts == seen


class TestForeseen:
    """Restarts that the events have proved before a probe met the new process."""

    def test_a_probe_that_meets_it_does_not_count_it_again(self) -> None:
        vitals = make()
        vitals.foresee_restart()
        assert not vitals.pass_probe("2")
        assert vitals.boot_id == "2"
        assert vitals.pass_probe("3")

    def test_one_that_was_under_way_may_still_have_met_the_old_process(self) -> None:
        vitals = make()
        vitals.foresee_restart()
        assert not vitals.pass_probe("1", is_fresh=False)
        assert not vitals.pass_probe("2")

    def test_one_that_finds_the_same_process_ends_the_waiting(self) -> None:
        """Its HTTP server stayed up, so that the next new one is another restart."""
        vitals = make()
        vitals.foresee_restart()
        assert not vitals.pass_probe("1")
        assert vitals.pass_probe("2")

    def test_one_that_is_told_nothing_does_not(self) -> None:
        vitals = make()
        vitals.foresee_restart()
        assert not vitals.pass_probe(None)
        assert not vitals.pass_probe("2")

    def test_a_refused_connection_is_the_same_restart(self) -> None:
        vitals = make(None)
        vitals.fail_probe(0.0, refused=True)
        vitals.foresee_restart()
        assert not vitals.pass_probe(None)
