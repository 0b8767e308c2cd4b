"""Which data-parallel ranks a backend has, where they publish, what is told of them."""

import pytest

from warmroute.adapters.kv_events.address import EventAddress, at_ranks
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import Candidate
from warmroute.proxy.fleet.ranks import MAX_RANKS, find_ranks, seat_names
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.prompt import Piece, Prompt
from warmroute.proxy.view import View
from warmroute.proxy.view.seats import together

HEARD = {"source": "events", "blocks": 3, "seq": 7, "incarnation": 0, "gaps": 1}
HEARD |= {"replays": 1, "lag_s": 0.5, "status": "live", "orphans": 0, "discount": 1.0}


def sources(*ranks: int) -> list[EventAddress]:
    return [EventAddress(f"tcp://h:{5557 + rank}", rank=rank) for rank in ranks]


@pytest.mark.parametrize(
    ("publishing", "told", "expected"),
    [
        ((), None, []),
        ((0,), None, []),
        ((0,), 1, []),
        ((0, 1), None, [0, 1]),
        ((2, 3), 2, [2, 3]),
        ((0,), 3, [0, 1, 2]),
        ((), 2, [0, 1]),
        ((4,), 2, []),
        ((), 10**9, []),
        (range(MAX_RANKS + 1), None, []),
    ],
)
def test_ranks_are_found_by_what_publishes_and_what_the_engine_counts(
    publishing: tuple[int, ...], told: int | None, expected: list[int]
) -> None:
    assert find_ranks(sources(*publishing), told) == expected


def test_no_rank_is_called_as_a_backend_can_be() -> None:
    assert seat_names("a", []) == ["a"]
    assert seat_names("a", [2, 3]) == ["a", "a rank 3"]


def test_ports_count_up_a_rank() -> None:
    first = EventAddress("tcp://h:5557", "tcp://h:5657", "kv", binds=True)
    assert at_ranks(first, 1) == [first]
    assert at_ranks(first, 2)[1] == EventAddress(
        "tcp://h:5558", "tcp://h:5658", "kv", 1, binds=True
    )
    assert len(at_ranks(EventAddress("ipc:///run/kv"), 4)) == 1
    assert len(at_ranks(EventAddress("tcp://h:65534"), 4)) == 2


def test_the_worst_rank_speaks_for_the_backend() -> None:
    behind = {**HEARD, "seq": 4, "status": "catching_up", "lag_s": 0.7}
    lost = {**HEARD, "source": "mirror", "status": "degraded", "discount": 0.5}
    facts = together([HEARD, behind, lost])
    assert (facts["source"], facts["status"], facts["seq"]) == ("mirror", "degraded", 4)
    assert (facts["blocks"], facts["gaps"], facts["lag_s"]) == (9, 3, 0.7)
    assert (facts["discount"], facts["ranks"]) == (0.5, [HEARD, behind, lost])
    assert together([HEARD, behind])["status"] == "catching_up"


def test_a_rank_without_a_message_is_behind_all_others() -> None:
    assert together([HEARD, {**HEARD, "seq": None}])["seq"] is None


def test_what_was_believed_of_all_ranks_together_is_believed_of_none() -> None:
    """When a backend turns out to have ranks, and when one of them goes."""
    view = View(PrefixIndex())
    view.add_backend("a")
    names = ["a", "a rank 1"]
    prompt = Prompt("chat", "m", "estimated", (Piece(64, 1, None, bytes(256)),), 64)
    alone = [Candidate("a")]
    view.dispatched(view.match(prompt, alone, 4.0, 1.0), "a", 1.0)
    view.configure("a", capacity_tokens=1000, seats=names)
    both = [Candidate(name) for name in names]
    view.dispatched(view.match(prompt, both, 4.0, 2.0), "a rank 1", 2.0)
    view.match(prompt, both, 4.0, 3.0)
    assert [one.matched_tokens for one in both] == [0, 48]
    assert view.facts("a")["blocks"] == 1
    assert view.tree("a", 1)["children"]
    view.configure("a", seats=["a"])
    assert view.facts("a")["blocks"] == 0
    assert not view.tree("a", 1)["children"]


def test_a_record_shows_the_best_rank_and_of_the_chosen_backend_the_chosen_one() -> (
    None
):
    roster = Roster(
        *(["a", "b"], ["up", "up"], ["events", "events"], [0, 0, 1, 1]),
        *([16, 16], [0, 1, 0, 1]),
    )
    decision = Decision(
        *("r", 1.0, "/v1/completions", "m", "exact", 100, "least_requests", roster),
        *([16, 48, 64, 32], 0, "load"),
        [(0.0, 0.0, 0.0, float(at)) for at in range(4)],
    )
    record = decision.explained()
    shown = [one["matched_tokens"]["gpu"] for one in record["candidates"]]
    costs = [one["cost"]["total_s"] for one in record["candidates"]]
    assert (record["chosen"], record["rank"], shown) == ("a", 0, [16, 64])
    assert costs == [0.0, 2.0]
