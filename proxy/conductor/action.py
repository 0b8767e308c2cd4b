"""What the conductor did, why, and what came of it."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from warmroute.policies.conducting.item import Item, Kind, Turn
from warmroute.policies.errors import WarmrouteError

MAX_ACTIONS = 1000
_DEMOTED_S = 60.0
_SHOWN = ("backend", "hash", "kind", "outcome", "reason", "time", "tokens")

Verdict = Literal[
    "hit",
    "missed",
    "elsewhere",
    "unused",
    "regretted",
    "copied",
    "refused",
    "nothing",
    "failed",
]
"""An outcome in one word, which metrics have as a label."""


class Action:
    """One action on one backend, with its reason and its later outcome."""

    __slots__ = (*_SHOWN, "is_counted", "verdict")

    def __init__(
        self,
        time: float,
        kind: Kind,
        backend: str,
        tail: int,
        tokens: int,
        reason: str,
    ) -> None:
        self.time = time
        self.kind = kind
        self.backend = backend
        self.hash = f"{tail:016x}"
        self.tokens = tokens
        self.reason = reason
        self.outcome: str | None = None
        self.verdict: Verdict | None = None
        self.is_counted = False

    def __repr__(self) -> str:
        return f"<Action {self.kind} {self.hash} on {self.backend}: {self.outcome}>"

    def as_object(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {name: getattr(self, name) for name in _SHOWN}

    def end(self, verdict: Verdict, words: str) -> None:
        """Note an outcome, unless there is one already."""
        if self.verdict is None:
            self.verdict, self.outcome = verdict, words

    def patience_s(self, ttl_s: float) -> float:
        """Return for how long its outcome may come."""
        return _DEMOTED_S if self.kind == "demote" else max(ttl_s, 1.0)

    def judge(self, item: Item, turn: Turn) -> None:
        """Note that what it was done to is asked for again."""
        cached = min(turn.cached_tokens, item.tokens)
        if turn.backend != self.backend:
            self.end("elsewhere", f"asked for on {turn.backend} instead")
        elif self.kind == "demote":
            lost = f"{item.tokens - cached} tokens were computed again"
            self.end("regretted", f"asked for after all: {lost}")
        elif 2 * cached >= item.tokens:
            self.end("hit", f"hit: {cached} of {item.tokens} tokens were cached")
        else:
            self.end("missed", f"missed: only {cached} of {item.tokens} were cached")


class Actions:
    """Keep the newest 1000 actions, and see what comes of each.

    Args:
        wall: Unix time.

    Attributes:
        counts: Actions that have an outcome, each once, by kind and verdict.
    """

    __slots__ = ("_open", "_ring", "_wall", "counts")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ring: deque[Action] = deque(maxlen=MAX_ACTIONS)
        self._open: dict[Action, float] = {}
        self.counts: dict[tuple[Kind, Verdict], int] = {}

    def __repr__(self) -> str:
        return f"<Actions [{len(self._ring)} kept]>"

    def __iter__(self) -> Iterator[Action]:
        """Go through those kept, the newest first."""
        return reversed(self._ring)

    def as_object(self) -> dict[str, object]:
        """Return outcomes and actions as JSON has them."""
        counts = sorted(self.counts.items())
        return {
            "outcomes": [
                {"kind": kind, "outcome": verdict, "actions": number}
                for (kind, verdict), number in counts
            ],
            "actions": [action.as_object() for action in self],
        }

    def begin(self, kind: Kind, item: Item, backend: str, reason: str) -> Action:
        """Record an action that is about to be done."""
        action = Action(self._wall(), kind, backend, item.tail, item.tokens, reason)
        self._ring.append(action)
        return action

    def end(self, action: Action, verdict: Verdict, words: str) -> None:
        """Note the outcome of an action that is not waited for."""
        action.end(verdict, words)
        self._count(action)

    @contextmanager
    def attempt(self, action: Action) -> Iterator[None]:
        """End an action that fails within the block; what it raised goes on."""
        try:
            yield
        except Exception as error:
            is_told = isinstance(error, WarmrouteError)
            fault = error if is_told else "a fault of the conductor"
            self.end(action, "failed", f"failed: {fault}")
            raise

    def expect(self, action: Action, until: float) -> None:
        """Let an action be judged at a time, if it has no outcome by then.

        One that is prolonged is judged at the later time only, and of more than 1000
        the one that waits longest is judged now.
        """
        self._open.pop(action, None)
        self._open[action] = until
        if len(self._open) > MAX_ACTIONS:
            self._judge(next(iter(self._open)))

    def cut_off(self) -> None:
        """End what was begun and came to no end, as when all is stopped."""
        for action in self._ring:
            if action not in self._open:
                words = "failed: cut off before the engine had answered"
                self.end(action, "failed", words)

    def expire(self, now: float) -> None:
        """Judge what has waited long enough for an outcome. O(actions waiting)."""
        for action, until in list(self._open.items()):
            if until <= now or action.verdict is not None:
                self._judge(action)

    def _judge(self, action: Action) -> None:
        del self._open[action]
        is_good = action.kind == "demote"
        action.end(
            "unused", "not asked for since" if is_good else "not asked for in time"
        )
        self._count(action)

    def _count(self, action: Action) -> None:
        if action.verdict is None or action.is_counted:
            return
        action.is_counted = True
        key = (action.kind, action.verdict)
        self.counts[key] = self.counts.get(key, 0) + 1


def renewed(item: Item, now: float) -> Action | None:
    """Return the retention of an item that is only to be prolonged, if it is."""
    if item.held_until <= now:
        return None
    kept = (one for one in waiting(item) if one.kind == "retain")
    return next(kept, None)


def waiting(item: Item) -> list[Action]:
    """Return the actions on an item that have no outcome, the newest first."""
    notes = (one for one in reversed(item.notes) if isinstance(one, Action))
    return [one for one in notes if one.verdict is None]
