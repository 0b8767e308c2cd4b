"""A request on its way to a simulated fleet, and where requests come from."""

from heapq import heappop, heappush
from math import inf
from random import Random
from typing import NamedTuple, Protocol

from warmroute.proxy.replay.trace import Session, Trace, TraceRequest

RAMP_S = 300.0
"""Seconds over which the first sessions begin."""


class Arrival(NamedTuple):
    """A request that comes at *time_s*.

    Attributes:
        time_s: When, in seconds of the replay.
        request: What is asked.
        slot: The place of its session among those that run.
        turn: Its place in the session.
    """

    time_s: float
    request: TraceRequest
    slot: int = 0
    turn: int = 0


class Workload(Protocol):
    """Requests in time order, of which later ones may wait for earlier ones."""

    @property
    def next_at(self) -> float:
        """When the next request comes, as far as is known; inf is never."""
        ...

    def pop(self) -> Arrival:
        """Return the next request."""
        ...

    def finished(self, arrival: Arrival, at: float) -> None:
        """Learn that the answer ended at *at*, which may be in the future."""
        ...


class OpenLoop:
    """Requests that come when they were recorded, whatever becomes of others.

    Args:
        trace: The requests.
        speed: How much faster than recorded.
        jitter_s: Recorded seconds by which each comes later at most.
        rng: Draws the jitter.
    """

    __slots__ = ("_arrivals", "_next")

    def __init__(
        self, trace: Trace, speed: float, jitter_s: float, rng: Random
    ) -> None:
        self._arrivals = trace.arrivals(speed, jitter_s, rng)
        self._next = 0

    def __repr__(self) -> str:
        return f"<OpenLoop {self._next} of {len(self._arrivals)} requests>"

    @property
    def next_at(self) -> float:
        """When the next request comes."""
        if self._next == len(self._arrivals):
            return inf
        return self._arrivals[self._next][0]

    def pop(self) -> Arrival:
        """Return the next request."""
        time_s, request = self._arrivals[self._next]
        self._next += 1
        return Arrival(time_s, request)

    def finished(self, arrival: Arrival, at: float) -> None:
        """Do nothing: nobody waits for an answer."""


class ClosedLoop:
    """Sessions side by side: a turn comes after the reply and the time to think.

    As many sessions as there are slots run at once; where one ends, the next begins
    at once, until all were played. The first ones begin within `RAMP_S`.

    Args:
        sessions: All there are.
        slots: How many run at once.
        rng: Draws their order and the beginnings.
    """

    __slots__ = ("_due", "_left", "_num_due", "_open", "_running", "_waiting")

    def __init__(self, sessions: tuple[Session, ...], slots: int, rng: Random) -> None:
        self._left = list(sessions)
        rng.shuffle(self._left)
        slots = min(slots, len(self._left))
        self._running: list[Session] = [self._left.pop() for _ in range(slots)]
        self._open = [len(session.turns) for session in self._running]
        self._due: list[tuple[float, int, int, int]] = []
        self._num_due = 0
        for slot in range(slots):
            self._begin(slot, RAMP_S * rng.random())

    def __repr__(self) -> str:
        return f"<ClosedLoop {len(self._running)} sessions, {len(self._left)} to come>"

    @property
    def next_at(self) -> float:
        """When the next request comes, as far as is known."""
        return self._due[0][0] if self._due else inf

    def pop(self) -> Arrival:
        """Return the next request."""
        time_s, _, slot, turn = heappop(self._due)
        return Arrival(time_s, self._running[slot].turns[turn].request, slot, turn)

    def finished(self, arrival: Arrival, at: float) -> None:
        """Let the turns come that wait for this one, or the next session."""
        slot = arrival.slot
        self._open[slot] -= 1
        if self._open[slot]:
            self._follow(slot, arrival.turn, at)
        elif self._left:
            self._running[slot] = self._left.pop()
            self._open[slot] = len(self._running[slot].turns)
            self._begin(slot, at)

    def _begin(self, slot: int, at: float) -> None:
        self._follow(slot, -1, at)

    def _follow(self, slot: int, turn: int, at: float) -> None:
        turns = self._running[slot].turns
        for follower in self._running[slot].followers[turn + 1]:
            self._num_due += 1
            due = at + turns[follower].think_s
            heappush(self._due, (due, self._num_due, slot, follower))
