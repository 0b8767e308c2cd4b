"""Plain queues behind the router's own, which holds requests back."""

from math import inf

from warmroute.policies.routing.base import Candidate
from warmroute.proxy.replay.arrival import Arrival, Workload
from warmroute.proxy.replay.holding import Holding
from warmroute.proxy.replay.intent import Intent
from warmroute.proxy.replay.play import Progress
from warmroute.proxy.replay.routed import RoutedFleet
from warmroute.proxy.replay.tally import Tally


class HeldQueues:
    """A fleet of plain queues, where a request's fate is known when it is sent.

    Args:
        server: Decides and serves.
        order: Of what is held.
    """

    __slots__ = ("_order", "_server")

    def __init__(self, server: RoutedFleet, order: str) -> None:
        self._server = server
        self._order = order

    def __repr__(self) -> str:
        return f"<HeldQueues {self._order} before {self._server!r}>"

    def play(self, workload: Workload, tally: Tally, progress: Progress) -> None:
        """Serve everything, and tell *tally* what came of it."""
        round_ = _Round(self._server, workload, tally, progress)
        holding = Holding(self._order, round_, self._server.candidates)
        while (at := min(workload.next_at, holding.next_at)) < inf:
            if holding.next_at == at:
                holding.look()
            else:
                arrival = workload.pop()
                holding.admit(arrival, arrival.time_s)


class _Round:
    """One play of a workload."""

    __slots__ = ("_progress", "_server", "_tally", "_workload")

    def __init__(
        self,
        server: RoutedFleet,
        workload: Workload,
        tally: Tally,
        progress: Progress,
    ) -> None:
        self._server = server
        self._workload = workload
        self._tally = tally
        self._progress = progress

    def plan(
        self, arrival: Arrival, now: float, earlier: Candidate | None = None
    ) -> Intent:
        """Choose at *now*, *earlier* again if given, and reserve nothing."""
        return self._server.plan(arrival.request, now, earlier)

    def send(self, arrival: Arrival, intent: Intent, now: float) -> None:
        """Send it where *intent* says; what it waited before is part of its times."""
        served = self._server.send(arrival.request, intent, now)
        held_s = now - arrival.time_s
        served = served._replace(
            ttft_s=held_s + served.ttft_s, duration_s=held_s + served.duration_s
        )
        self._progress()
        self._tally.add(served, arrival.time_s)
        self._workload.finished(arrival, arrival.time_s + served.duration_s)

    def catch_up(self, now: float) -> None:
        """Let everything happen that happens until *now*."""
        self._server.catch_up(now)
