"""The order of last use keeps no more lost runs than it has others."""

from array import array

from warmroute.policies.kv.recency import Recency
from warmroute.policies.kv.run import Run


def runs(count: int) -> list[Run]:
    root = Run(None, 0, array("Q"), 0)
    found = [Run(root, 0, array("Q", [number]), 16) for number in range(count)]
    for number, run in enumerate(found):
        run.last = float(number)
    return found


def test_growth_alone_starts_nothing_anew() -> None:
    """It takes a look at every run, which would hold up everybody."""
    num_looks = 0

    def stamp_of(run: Run) -> float:
        nonlocal num_looks
        num_looks += 1
        return run.last

    grown = runs(5000)
    order = Recency(stamp_of, most=lambda: len(grown))
    for run in grown:
        order.push(run, run.last)
    assert num_looks == 0
    assert order.oldest() is grown[0]


def test_lost_runs_go_when_they_are_too_many() -> None:
    some = runs(100)
    order = Recency(lambda run: run.last, most=lambda: len(some))
    for run in some * 50:
        order.push(run)
    num_entries = int(repr(order).partition("Entries: ")[2].partition("]")[0])
    assert num_entries <= 2 * len(some) + 64
    assert order.runs() == set(some)
