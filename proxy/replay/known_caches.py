"""What a router knows of the caches of plain queues."""

from collections import Counter, deque
from random import Random

from warmroute.proxy.replay.block_cache import BlockCache
from warmroute.proxy.replay.memory_view import HEALED_S
from warmroute.proxy.replay.trace import TraceRequest
from warmroute.proxy.replay.view_grade import ViewGrade


class KnownCaches:
    """The caches as they are, as they were, or as a mirror has them.

    Args:
        caches: Of the engines.
        grade: How well they are known.
        block_size: Tokens a block.
        capacity_tokens: Of each cache.
        rng: Draws which events are lost.
    """

    __slots__ = ("_block_size", "_grade", "_known", "_late", "_recent", "_rng")

    def __init__(
        self,
        caches: list[BlockCache],
        grade: ViewGrade,
        block_size: int,
        capacity_tokens: int,
        rng: Random,
    ) -> None:
        self._grade = grade
        self._block_size = block_size
        self._rng = rng
        self._known = caches
        self._recent: list[Counter[int]] = [Counter() for _ in caches]
        self._late: deque[tuple[float, int, TraceRequest]] = deque()
        if not grade.is_exact:
            capacity = int((grade.capacity_error or 1.0) * capacity_tokens)
            self._known = [BlockCache(block_size, capacity) for _ in caches]

    def __repr__(self) -> str:
        return f"<KnownCaches {self._grade} of {len(self._known)} engines>"

    def cached_tokens(self, request: TraceRequest, now: float) -> list[int]:
        """Return what each engine is believed to have of a prompt."""
        late = self._late
        while late and late[0][0] <= now:
            _, index, admitted = late.popleft()
            self._known[index].admit(admitted)
            self._recent[index].subtract(admitted.blocks)
            self._recent[index] += Counter()  # drops what is counted no more
        return [
            cache.cached_tokens(request, recent)
            if recent
            else cache.cached_tokens(request)
            for cache, recent in zip(self._known, self._recent, strict=True)
        ]

    def admitted(self, index: int, request: TraceRequest, now: float) -> None:
        """Note that a prompt was sent to an engine, which has it from now on.

        What an event has not told yet, the request in flight promises.
        """
        grade = self._grade
        if grade.is_exact:
            return
        if grade.capacity_error is not None:
            self._known[index].admit(request)
            return
        due = now + grade.delay_s
        if self._rng.random() < grade.loss:
            due += HEALED_S
        if self._late:
            due = max(due, self._late[-1][0])
        self._recent[index].update(request.blocks)
        self._late.append((due, index, request))
