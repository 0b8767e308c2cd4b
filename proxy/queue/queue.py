"""The queue of the router: requests for busy backends wait here, not in the engine.

An engine serves what it has in the order in which it came. Held here, the shorter
prefill can go first, and when backends come or go, the place can still change. Among
the same backends the choice that was made at first holds: at the head of its line, a
second one would take all that stands behind the request for standing before it, and
leave a warm cache for nothing; a policy that does not count what is held would send it
from line to line. Two things keep this safe. A backend keeps enough prefill of its own
to stay busy between two looks at the queue, and a request waits in no more than one
place, as one entry of `_lines`, until it is sent, refused, or its client has left.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from warmroute.policies.errors import ClientError
from warmroute.policies.routing.base import Candidate
from warmroute.policies.routing.pricing import outstanding_tokens
from warmroute.proxy.config.policy import QueueConfig
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.inbound import ClientConnection
from warmroute.proxy.http.work import Work
from warmroute.proxy.ledger.histogram import TTFT_BOUNDS_S, Histogram
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.queue.held import Held
from warmroute.proxy.queue.line import Line
from warmroute.proxy.router import Router
from warmroute.proxy.routing import Plan
from warmroute.proxy.telemetry.request_trace import RequestTrace

if TYPE_CHECKING:
    from warmroute.proxy.port import DataPort

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.01
"""Seconds between two looks, while something is held."""

_AGEING: Final = 0.03  # seconds of prefill that a second of waiting makes up for
_MAX_RETRY_S: Final = 60


class HoldQueue:
    """Hold requests back while their backend has enough to prefill.

    Args:
        config: Order and bounds.
        router: Decides when a request comes, and again when backends come or go.
        clock: Monotonic seconds.
        call_later: Runs a call after some seconds; the running loop's by default.
    """

    __slots__ = (
        *("_call_later", "_clock", "_config", "_held", "_is_open", "_lines"),
        *("_number", "_router", "_timer", "outcomes", "waits"),
    )

    def __init__(
        self,
        config: QueueConfig,
        router: Router,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._call_later = call_later
        self._config = config
        self._router = router
        self._clock = clock
        self._lines: dict[Candidate, Line] = {}
        self._held: dict[Held, Line] = {}
        self._number = 0
        self._is_open = False
        self._timer: object | None = None
        self.waits = Histogram(TTFT_BOUNDS_S)
        self.outcomes = dict.fromkeys(("sent", "full", "timeout", "left", "failed"), 0)

    def __repr__(self) -> str:
        return f"<HoldQueue {self._config.order} {len(self._held)} held>"

    def __len__(self) -> int:
        return len(self._held)

    def configure(self, config: QueueConfig) -> None:
        """Take over other bounds; what is held keeps its place."""
        self._config = config

    def release_all(self) -> None:
        """Hold nothing any more: everything goes at the next look."""
        self._is_open = True

    def admit(
        self,
        port: "DataPort",
        client: ClientConnection,
        head: RequestHead,
        body: bytes,
        prompt: Prompt,
        trace: RequestTrace | None,
        started_at: float,
    ) -> Work:
        """Make the work of a request: its exchange, or the wait for it.

        Raises:
            ClientError: As `Router.route`, and 429 ``queue_full``.
        """
        now = self._clock()
        plan = self._router.plan(head, prompt, now)
        held = Held(self, port, client, head, body, prompt, trace, started_at)
        self._rank(held, plan)
        if self._may_pass(held, plan, now):
            return port.exchange(
                client, head, body, prompt, trace, started_at, plan=plan
            )
        if len(self._held) >= self._config.max_requests:
            self.outcomes["full"] += 1
            error = self._refusal("queue_full", plan.candidate, "the queue is full")
            self.record_refused(plan, error, started_at)
            raise error
        held.since = now
        self._enter(held, plan)
        self._wind()
        return held

    def left(self, held: Held) -> bool:
        """Take out a request whose client is gone; False if it was not here."""
        line = self._held.pop(held, None)
        if line is None:
            return False
        line.leave(held)
        self.outcomes["left"] += 1
        return True

    def record_refused(self, plan: Plan, error: ClientError, started_at: float) -> None:
        """Keep the record of a request that ends without having been sent."""
        router, decision = self._router, plan.decision
        waited_s = self._clock() - started_at
        router.ledger.refuse(decision, error.status, error.code, waited_s)
        if router.recorder is not None:
            router.recorder.add(decision, plan.lookup, plan.query.session)

    def look(self) -> None:
        """Send what may go, and refuse what has waited too long."""
        now = self._clock()
        for line in list(self._lines.values()):
            self._serve(line, now)
            if not line:
                del self._lines[line.candidate]
        oldest_since = now - self._config.max_wait_s
        while self._held:
            held = next(iter(self._held))
            if held.since > oldest_since:
                break
            candidate = self._take_out(held)
            self.outcomes["timeout"] += 1
            held.refuse(self._refusal("queue_timeout", candidate, "it waited too long"))

    def facts(self) -> dict[str, Any]:
        """Return what ``/api/state`` shows."""
        oldest = next(iter(self._held), None)
        lines: dict[str, dict[str, int]] = {}
        for line in filter(len, self._lines.values()):
            # One that has just restarted has the line of its old self as well.
            shown = lines.setdefault(line.candidate.name, {"requests": 0, "tokens": 0})
            shown["requests"] += len(line)
            shown["tokens"] += line.tokens
        return {
            "order": self._config.order,
            "requests": len(self._held),
            "max_requests": self._config.max_requests,
            "oldest_s": None if oldest is None else self._clock() - oldest.since,
            "outcomes": dict(self.outcomes),
            "backends": lines,
        }

    def _rank(self, held: Held, plan: Plan) -> None:
        candidate, started_at = plan.candidate, held.started_at
        held.plan = plan
        held.uncached_tokens = plan.uncached_tokens
        held.key = started_at
        if self._config.order == "shortest_uncached":
            work_s = held.uncached_tokens / candidate.rate
            held.key = work_s + _AGEING * started_at

    def _may_pass(self, held: Held, plan: Plan, now: float) -> bool:
        """Tell whether a request need not wait: nothing to compute, no choice, room."""
        if held.uncached_tokens <= 0 or plan.decision.reason == "pin" or self._is_open:
            return True
        return self._can_go(held, plan.candidate, now)

    def _can_go(self, held: Held, candidate: Candidate, now: float) -> bool:
        """Tell whether a backend has room, and nobody stands before *held*."""
        line = self._lines.get(candidate)
        is_next = line is None or line.is_before_all(held.key)
        return is_next and self._has_room(candidate, now)

    def _has_room(self, candidate: Candidate, now: float) -> bool:
        enough = self._config.busy_s * candidate.rate
        return outstanding_tokens(candidate, now) <= enough

    def _enter(self, held: Held, plan: Plan) -> None:
        line = self._lines.get(plan.candidate)
        if line is None:
            line = Line(plan.candidate, plan.backend.name)
            self._lines[plan.candidate] = line
        if not held.number:
            self._number += 1
            held.number = self._number
        line.enter(held)
        self._held[held] = line  # one that moves keeps its age

    def _take_out(self, held: Held) -> Candidate:
        line = self._held.pop(held)
        line.leave(held)
        return line.candidate

    def _serve(self, line: Line, now: float) -> None:
        """Let requests of a line go while there is room, or no backend any more."""
        for _ in range(len(line)):
            if not (
                self._is_open
                or self._is_out(line)
                or self._has_room(line.candidate, now)
            ):
                return
            held = line.take()
            try:
                self._decide(held, now)
            except ClientError as error:
                del self._held[held]
                self.outcomes["failed"] += 1
                held.refuse(error)

    def _is_out(self, line: Line) -> bool:
        """Tell whether a backend is gone, restarted, or takes no new requests."""
        backend = self._router.fleet.backends.get(line.backend)
        return (
            backend is None
            or line.candidate not in backend.candidates
            or backend.state in ("down", "draining")
        )

    def _decide(self, held: Held, now: float) -> None:
        """Send, with the view of now; choose anew, and move, if the fleet changed."""
        plan = self._router.plan(held.head, held.prompt, now, held.plan)
        self._rank(held, plan)
        if not (self._is_open or self._can_go(held, plan.candidate, now)):
            self._enter(held, plan)
            return
        del self._held[held]
        waited_s = now - held.since
        plan.decision.queued_s = waited_s
        self.waits.observe(waited_s)
        self.outcomes["sent"] += 1
        held.send(plan)

    def _refusal(self, code: str, candidate: Candidate, what: str) -> ClientError:
        now = self._clock()
        backlog = outstanding_tokens(candidate, now) + candidate.queued_tokens
        wait_s = min(_MAX_RETRY_S, max(1, ceil(backlog / candidate.rate)))
        config = self._config
        return ClientError(
            429,
            code,
            f"{what}: {len(self._held)} requests wait for a backend with room "
            f"(policy.queue: max_requests {config.max_requests}, max_wait_s "
            f"{config.max_wait_s:g}); retry later, or add a backend",
            retry_after_s=wait_s,
        )

    def _wind(self) -> None:
        if self._timer is None and self._held:
            call_later = self._call_later or asyncio.get_running_loop().call_later
            self._timer = call_later(LOOK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.look()
        except Exception:
            logger.exception("queue_failed")
        self._wind()
