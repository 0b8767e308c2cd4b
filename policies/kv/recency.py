"""Which run was used least recently, among those that one rule counts."""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from warmroute.policies.kv.run import Run

_SLACK: Final = 64


class Recency:
    """A heap of runs, least recently used first and deepest first among equals.

    Using a run costs nothing here: its entry is found to be stale, and is renewed,
    only when it comes to the front. O(log n) amortised a run that goes in or out.

    Args:
        stamp_of: The stamp that counts for a run; None when it does not belong here
            any more. Stamps of a run never fall.
        runs: Those that belong here from the start.
        most: Returns how many may belong here at most. To start anew holds everybody
            up, and with this known is done for lost runs alone, never for growth.
    """

    __slots__ = ("_ceiling", "_heap", "_most", "_stamp_of")

    def __init__(
        self,
        stamp_of: Callable[[Run], float | None],
        runs: Iterable[Run] = (),
        most: Callable[[], int] | None = None,
    ) -> None:
        self._stamp_of = stamp_of
        self._most = most
        self._heap: list[tuple[float, int, Run]] = []
        self._ceiling = _SLACK
        self._fill(runs)

    def __repr__(self) -> str:
        return f"<Recency [Entries: {len(self._heap)}]>"

    def __contains__(self, run: Run) -> bool:
        return any(entry[2] is run for entry in self._heap)

    def push(self, run: Run, stamp: float | None = None) -> None:
        """Take in a run that has come to belong here; twice does no harm.

        Args:
            run: The run.
            stamp: The one that counts for it, where the caller knows.
        """
        if len(self._heap) >= self._ceiling:
            self._make_room()
        if stamp is None:
            stamp = self._stamp_of(run)
        if stamp is not None:
            heappush(self._heap, (stamp, -run.start, run))

    def runs(self) -> set[Run]:
        """Return those that may belong here. O(n)."""
        return {entry[2] for entry in self._heap}

    def oldest(self) -> Run | None:
        """Return the least recently used run without taking it out."""
        heap, stamp_of = self._heap, self._stamp_of
        while heap:
            entry = heap[0]
            run = entry[2]
            stamp = stamp_of(run)
            if stamp is None:
                heappop(heap)
            elif stamp != entry[0] or run.start != -entry[1]:
                heapreplace(heap, (stamp, -run.start, run))
            else:
                return run
        return None

    def _make_room(self) -> None:
        if self._most is not None:
            self._ceiling = 2 * self._most() + _SLACK
        if len(self._heap) >= self._ceiling:
            self._fill(self.runs())

    def _fill(self, runs: Iterable[Run]) -> None:
        """Start anew, so that entries of lost runs never outnumber the others."""
        self._heap = [
            (stamp, -run.start, run)
            for run in runs
            if (stamp := self._stamp_of(run)) is not None
        ]
        heapify(self._heap)
        self._ceiling = 2 * len(self._heap) + _SLACK
