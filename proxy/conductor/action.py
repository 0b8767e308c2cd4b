"""What the conductor did, why, and what came of it."""

from collections import deque
from collections.abc import Callable, Iterator

from warmroute.policies.conducting.item import Item, Kind, Turn

MAX_ACTIONS = 1000
_DEMOTED_S = 60.0


class Action:
    """One action on one backend, with its reason and its later outcome."""

    __slots__ = ("backend", "hash", "kind", "outcome", "reason", "time", "tokens")

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

    def __repr__(self) -> str:
        return f"<Action {self.kind} {self.hash} on {self.backend}: {self.outcome}>"

    def as_object(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {name: getattr(self, name) for name in sorted(self.__slots__)}

    def judge(self, item: Item, turn: Turn) -> None:
        """Note that what it was done to is asked for again."""
        if self.outcome is not None:
            return
        cached = min(turn.cached_tokens, item.tokens)
        if turn.backend != self.backend:
            self.outcome = f"asked for on {turn.backend} instead"
        elif self.kind == "demote":
            lost = item.tokens - cached
            self.outcome = f"asked for after all: {lost} tokens were computed again"
        elif 2 * cached >= item.tokens:
            self.outcome = f"hit: {cached} of {item.tokens} tokens were cached"
        else:
            self.outcome = f"missed: only {cached} of {item.tokens} were cached"


class Actions:
    """Keep the newest 1000 actions, count all, and see which come to nothing.

    Args:
        wall: Unix time.
    """

    __slots__ = ("_open", "_ring", "_wall", "counts")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ring: deque[Action] = deque(maxlen=MAX_ACTIONS)
        self._open: deque[tuple[float, Action]] = deque(maxlen=MAX_ACTIONS)
        self.counts: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"<Actions [{len(self._ring)} kept]>"

    def __iter__(self) -> Iterator[Action]:
        """Go through those kept, the newest first."""
        return reversed(self._ring)

    def begin(self, kind: Kind, item: Item, backend: str, reason: str) -> Action:
        """Record an action that is about to be done."""
        action = Action(self._wall(), kind, backend, item.tail, item.tokens, reason)
        self._ring.append(action)
        return action

    def expect(self, action: Action, until: float) -> None:
        """Let an action be judged at a time, if it has no outcome by then."""
        self._open.append((until, action))

    def expire(self, now: float) -> None:
        """Judge what has waited long enough for an outcome."""
        for _ in range(len(self._open)):
            until, action = self._open.popleft()
            if until > now and action.outcome is None:
                self._open.append((until, action))
                continue
            if action.outcome is None:
                good = action.kind == "demote"
                action.outcome = (
                    "not asked for since" if good else "not asked for in time"
                )
            word = action.outcome.partition(":")[0]
            key = (action.kind, "went elsewhere" if "instead" in word else word)
            self.counts[key] = self.counts.get(key, 0) + 1


def patience_s(kind: Kind, ttl_s: float) -> float:
    """Return for how long an outcome may come."""
    return _DEMOTED_S if kind == "demote" else max(ttl_s, 1.0)
