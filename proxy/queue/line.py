"""The requests held for one backend, in the order in which they will go."""

from bisect import insort

from warmroute.policies.routing.base import Candidate
from warmroute.proxy.queue.held import Held

Place = tuple[float, int, Held]


class Line:
    """Keep the held requests of one candidate sorted, and its backlog told.

    What is held counts as queued at the backend, so that a policy sees it. The keys
    are static, so a place is found once. O(log n) comparisons to enter and to leave.
    """

    __slots__ = ("_places", "backend", "candidate", "tokens")

    def __init__(self, candidate: Candidate, backend: str) -> None:
        self.candidate = candidate
        self.backend = backend
        self.tokens = 0
        self._places: list[Place] = []

    def __repr__(self) -> str:
        return f"<Line {self.candidate.name} {len(self)} held, {self.tokens} tokens>"

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, held: Held) -> None:
        """Add a request at the place of its key."""
        insort(self._places, (held.key, held.number, held))
        self._count(held.uncached_tokens)

    def is_before_all(self, key: float) -> bool:
        """Tell whether a request of *key* would be the next."""
        return not self._places or key < self._places[0][0]

    def take(self) -> Held:
        """Take out the next request."""
        held = self._places.pop(0)[2]
        self._count(-held.uncached_tokens)
        return held

    def leave(self, held: Held) -> None:
        """Take out a request that will not go."""
        self._places.remove((held.key, held.number, held))
        self._count(-held.uncached_tokens)

    def _count(self, tokens: int) -> None:
        self.tokens += tokens
        self.candidate.held_tokens += tokens
        self.candidate.queued_tokens += tokens
