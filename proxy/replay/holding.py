"""The router's queue on simulated time: the code of `proxy.queue`, and another clock.

The queue is given what it would have in the proxy: somebody who decides, a port that
takes what may go, and a timer. Nobody leaves, and the bounds are so wide that nothing
is refused, so that all policies serve the same requests.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from warmroute.policies.errors import PolicyError
from warmroute.policies.routing.base import Candidate
from warmroute.proxy.config.policy import QueueConfig
from warmroute.proxy.queue import HoldQueue
from warmroute.proxy.replay.arrival import Arrival
from warmroute.proxy.replay.intent import Intent

if TYPE_CHECKING:
    from warmroute.proxy.http.head import RequestHead
    from warmroute.proxy.http.inbound import ClientConnection
    from warmroute.proxy.port import DataPort
    from warmroute.proxy.prompt import Prompt
    from warmroute.proxy.router import Router

ORDERS: Final = ("shortest_uncached", "arrival")
_DAY_S: Final = 86_400.0
_MOST_HELD: Final = 1_000_000


class Planner(Protocol):
    """Decides where a request goes, and sends it there."""

    def plan(
        self, arrival: Arrival, now: float, earlier: Candidate | None = None
    ) -> Intent:
        """Choose at *now*, *earlier* again if given, and reserve nothing."""
        ...

    def send(self, arrival: Arrival, intent: Intent, now: float) -> None:
        """Send it where *intent* says, in the step that made it."""
        ...

    def catch_up(self, now: float) -> None:
        """Let everything happen that happens until *now*."""
        ...


class Holding:
    """Hold requests of a replay back as the router would.

    Args:
        order: Who goes first, one of `ORDERS`.
        planner: Decides and sends.
        candidates: Of the engines, in their order.

    Attributes:
        next_at: When the queue looks again; inf while nothing is held.
    """

    __slots__ = (
        *("_backends", "_failure", "_look", "_now", "_planner", "_queue", "next_at"),
    )

    def __init__(
        self, order: str, planner: Planner, candidates: Sequence[Candidate]
    ) -> None:
        self.next_at = inf
        self._now = 0.0
        self._failure: Exception | None = None
        self._planner = planner
        self._look: Callable[[], object] | None = None
        self._backends = {one.name: _Backend(one) for one in candidates}
        config = QueueConfig.model_validate(
            {"order": order, "max_wait_s": _DAY_S, "max_requests": _MOST_HELD}
        )
        router = cast("Router", _Router(self._backends, self))
        self._queue = HoldQueue(config, router, lambda: self._now, self._call_later)

    def __repr__(self) -> str:
        return f"<Holding {self._queue!r}>"

    def admit(self, arrival: Arrival, now: float) -> None:
        """Send a request that comes at *now*, or hold it."""
        self._at(now)
        door: Any = _Door(self, arrival)
        self._queue.admit(
            cast("DataPort", door),
            cast("ClientConnection", door),
            cast("RequestHead", arrival),
            b"",
            cast("Prompt", None),
            None,
            now,
        )

    def look(self) -> None:
        """Let the queue have its look, which is due at `next_at`."""
        look = self._look
        assert look is not None
        self._at(self.next_at)
        self.next_at = inf
        look()
        if self._failure is not None:  # the queue logs it, and goes on
            raise self._failure

    def remove(self, name: str) -> None:
        """Let an engine be gone; its line goes elsewhere at the next look."""
        del self._backends[name]

    def plan(self, arrival: Arrival, earlier: Candidate | None) -> Intent:
        """Decide for the queue."""
        try:
            return self._planner.plan(arrival, self._now, earlier)
        except Exception as error:
            self._failure = error
            raise

    def send(self, arrival: Arrival, intent: Intent) -> None:
        """Send what the queue lets go."""
        try:
            self._planner.send(arrival, intent, self._now)
        except Exception as error:
            self._failure = error
            raise

    def refuse(self, error: Exception) -> None:
        """Fail: a replay that leaves requests out would compare nothing."""
        self._failure = PolicyError(f"--queue: a request was refused: {error}")

    def _at(self, now: float) -> None:
        self._now = now
        self._planner.catch_up(now)

    def _call_later(self, seconds: float, look: Callable[[], object]) -> object:
        self.next_at = self._now + seconds
        self._look = look
        return look


class _Decision:
    """The part of a record that the queue reads and writes."""

    __slots__ = ("queued_s", "reason")

    def __init__(self) -> None:
        self.reason = "load"
        self.queued_s = 0.0


class _Plan:
    """An intent, as the queue reads plans."""

    __slots__ = (
        *("backend", "candidate", "decision", "intent", "num_backends"),
        "uncached_tokens",
    )

    def __init__(self, intent: Intent, backend: "_Backend", num_backends: int) -> None:
        self.intent = intent
        self.candidate = intent.candidate
        self.uncached_tokens = intent.uncached_tokens
        self.backend = backend
        self.num_backends = num_backends
        self.decision = _Decision()


class _Backend:
    """An engine that is up."""

    __slots__ = ("candidates", "name", "state")

    def __init__(self, candidate: Candidate) -> None:
        self.name = candidate.name
        self.candidates = [candidate]
        self.state = "up"


class _Router:
    """Decides through the planner; its own fleet as far as the queue asks."""

    __slots__ = ("_holding", "backends")

    def __init__(self, backends: dict[str, _Backend], holding: Holding) -> None:
        self.backends = backends
        self._holding = holding

    @property
    def fleet(self) -> "_Router":
        """Return what knows the backends."""
        return self

    def plan(
        self,
        head: Arrival,
        prompt: object,
        now: float,
        earlier: _Plan | None = None,
    ) -> _Plan:
        """Choose for the arrival that stands in for a head, as `Router.plan` does.

        Engines go and none comes, so their number says whether they are the same.
        """
        count, chosen = len(self.backends), None
        if earlier is not None and earlier.num_backends == count:
            chosen = earlier.candidate
        intent = self._holding.plan(head, chosen)
        return _Plan(intent, self.backends[intent.candidate.name], count)


class _Door:
    """The port and the client of one request."""

    __slots__ = ("_arrival", "_holding")

    def __init__(self, holding: Holding, arrival: Arrival) -> None:
        self._holding = holding
        self._arrival = arrival

    def exchange(self, *request: object, plan: _Plan) -> None:
        """Send the request where *plan* says."""
        self._holding.send(self._arrival, plan.intent)

    def hand_over(self, work: object) -> None:
        """Do nothing: it is on its way."""

    def abort(self) -> None:
        """Do nothing: the failure is known."""

    def refused(self, error: Exception) -> None:
        """Let the replay fail."""
        self._holding.refuse(error)
