"""Long verbs in short slices, with steps of the engine in between."""

import logging
import time
from collections.abc import Callable, Iterator

from warmroute.policies.errors import ClientError, PolicyError

logger = logging.getLogger(__name__)

SLICE_S = 0.001
"""How long a call works before it hands back; a slice that began is ended."""

MAX_OPEN = 16

LEFT_S = 60.0
"""How long a job waits for its caller, who waits for half of it at most."""

Part = dict[str, object]
Answer = dict[str, object]


class Jobs:
    """Run generators a few milliseconds a call, each known by its ticket.

    A job whose caller went away stays where it is until a newer one begins a minute
    later or needs its place; what it did is whole, because a generator only yields
    between whole slices.

    Args:
        after: Called at the end of each call that did something.
        clock: Monotonic seconds.
    """

    __slots__ = ("_after", "_called", "_clock", "_open")

    def __init__(
        self,
        after: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after = after
        self._clock = clock
        self._open: dict[int, Iterator[Part]] = {}
        self._called: dict[int, float] = {}

    def __repr__(self) -> str:
        return f"<Jobs [Open: {len(self._open)}]>"

    def begin(self, ticket: int, job: Iterator[Part]) -> Answer:
        """Start a job, and give its first parts."""
        self._leave()
        self._open[ticket] = job
        return self.go_on(ticket)

    def go_on(self, ticket: int) -> Answer:
        """Work on; ``{"parts", "done"}``, or ``{"error": [status, code, message]}``."""
        job = self._open.get(ticket)
        if job is None:
            return refusal(
                ClientError(
                    503,
                    "kv_call_lost",
                    "too many calls were open at once; call again",
                )
            )
        self._called[ticket] = self._clock()
        try:
            return self._work(ticket, job)
        except Exception as error:
            self._close(ticket)
            return refusal(translated(error))
        finally:
            self._after()

    def _work(self, ticket: int, job: Iterator[Part]) -> Answer:
        until = self._clock() + SLICE_S
        parts: list[Part] = []
        while self._clock() < until:
            part = next(job, None)
            if part is None:
                self._close(ticket)
                return {"parts": parts, "done": True}
            parts.append(part)
        return {"parts": parts, "done": False}

    def _leave(self) -> None:
        """Close the jobs that nobody goes on with, and the oldest of too many."""
        since = self._clock() - LEFT_S
        for ticket in list(self._open):
            if self._called[ticket] < since or len(self._open) >= MAX_OPEN:
                self._close(ticket)

    def _close(self, ticket: int) -> None:
        self._open.pop(ticket, None)
        self._called.pop(ticket, None)


def translated(error: Exception) -> ClientError:
    """Turn whatever a verb raised into a refusal; the engine runs on."""
    if isinstance(error, ClientError):
        return error
    if isinstance(error, PolicyError):
        return ClientError(400, "kv_policy_invalid", str(error))
    logger.error("warmroute: a verb of KV control failed", exc_info=error)
    name = type(error).__name__
    return ClientError(500, "kv_failed", f"the engine's plugin failed: {name}; see log")


def refusal(error: ClientError) -> Answer:
    """Return the answer that tells *error*, in plain types."""
    return {"error": [error.status, error.code, error.message]}
