"""Play requests to a fleet that serves them in the order in which they come."""

from collections.abc import Callable
from math import inf
from typing import Protocol

from warmroute.proxy.replay.arrival import Workload
from warmroute.proxy.replay.served import Served
from warmroute.proxy.replay.tally import Tally
from warmroute.proxy.replay.trace import TraceRequest

Progress = Callable[[], object]
"""Called for every request that is served."""


class Fleet(Protocol):
    """Something that serves what a workload gives."""

    def play(self, workload: Workload, tally: Tally, progress: Progress) -> None:
        """Serve everything, and tell *tally* what came of it."""
        ...


class Server(Protocol):
    """Something that knows at once what comes of a request."""

    def serve(self, request: TraceRequest, now: float) -> Served:
        """Serve *request*, which comes at *now*."""
        ...


class InOrder:
    """A fleet of plain queues, where a request's fate is known when it comes.

    Args:
        server: Serves.
    """

    __slots__ = ("_server",)

    def __init__(self, server: Server) -> None:
        self._server = server

    def __repr__(self) -> str:
        return f"<InOrder {self._server!r}>"

    def play(self, workload: Workload, tally: Tally, progress: Progress) -> None:
        """Serve everything, and tell *tally* what came of it."""
        while workload.next_at < inf:
            arrival = workload.pop()
            served = self._server.serve(arrival.request, arrival.time_s)
            progress()
            tally.add(served, arrival.time_s)
            workload.finished(arrival, arrival.time_s + served.duration_s)
