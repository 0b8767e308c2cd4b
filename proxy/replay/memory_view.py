"""What a router knows of the memory of simulated engines."""

from collections import deque
from random import Random
from typing import Final

from warmroute.proxy.replay.kv_memory import KvMemory
from warmroute.proxy.replay.prefix_tree import PrefixTree
from warmroute.proxy.replay.promises import Promises
from warmroute.proxy.replay.trace import Trace
from warmroute.proxy.replay.view_grade import ViewGrade

HEALED_S: Final = 3.0
"""Seconds after which a lost event has been replayed."""


class MemoryView:
    """What the engines have, and what requests in flight will leave there.

    Args:
        memories: Of each engine; engines that share one are given it each.
        tree: The prompts.
    """

    __slots__ = ("_memories", "_promises")

    def __init__(self, memories: list[KvMemory], tree: PrefixTree) -> None:
        self._memories = memories
        self._promises = [Promises(tree) for _ in memories]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._promises)} engines>"

    def blocks(self, index: int, path: list[int], now: float) -> int:
        """Return the leading blocks of a prompt that engine *index* is known to have.

        O(log segments).
        """
        promised = self._promises[index].promised_blocks(path)
        resident = self._memories[index].matched_blocks(path)
        return promised if promised > resident else resident

    def dispatched(self, index: int, segment: int, now: float) -> None:
        """Note that a prompt was sent to an engine."""
        self._promises[index].enter(segment)

    def computed(self, index: int, segment: int, now: float) -> None:
        """Note that its first token came."""

    def released(self, index: int, segment: int, now: float) -> None:
        """Note that its answer ended."""
        self._promises[index].leave(segment)

    def stepped(self, index: int, now: float) -> None:
        """Note that a step of an engine ended."""


class MirrorView(MemoryView):
    """A mirror of what was sent, least recently used first out.

    Args:
        memories: Of each engine.
        trace: What is replayed, with its tree.
        capacity_error: The mirror's capacity as a multiple of the true one.
    """

    __slots__ = ("_mirrors", "_tree")

    def __init__(
        self, memories: list[KvMemory], trace: Trace, capacity_error: float
    ) -> None:
        assert trace.tree is not None
        super().__init__(memories, trace.tree)
        self._tree = trace.tree
        self._mirrors = [
            KvMemory(
                trace.tree,
                trace.block_size,
                None
                if memory.capacity_tokens is None
                else int(capacity_error * memory.capacity_tokens),
            )
            for memory in memories
        ]

    def blocks(self, index: int, path: list[int], now: float) -> int:
        """Return the leading blocks of a prompt that were sent there."""
        return self._mirrors[index].matched_blocks(path)

    def dispatched(self, index: int, segment: int, now: float) -> None:
        """Enter the prompt: it will be there."""
        mirror, ends = self._mirrors[index], self._tree.ends
        for one in self._tree.path(segment):
            mirror.hold(one)
            mirror.store(one, ends[one])
            mirror.let_go(one)
        mirror.trim()

    def computed(self, index: int, segment: int, now: float) -> None:
        """Make it the newest, as engines do about now."""
        mirror = self._mirrors[index]
        if mirror.matched_blocks(self._tree.path(segment)):
            self.dispatched(index, segment, now)

    def released(self, index: int, segment: int, now: float) -> None:
        """Know nothing of it: the mirror is not told."""


class LateView(MemoryView):
    """What the engines announced some time ago, and what requests in flight will leave.

    Args:
        memories: Of each engine; their changes are written down from now on.
        tree: The prompts.
        grade: How late events come, and how many are lost at first.
        rng: Draws those.
    """

    __slots__ = ("_grade", "_known", "_late", "_rng", "_tree")

    def __init__(
        self, memories: list[KvMemory], tree: PrefixTree, grade: ViewGrade, rng: Random
    ) -> None:
        super().__init__(memories, tree)
        self._tree = tree
        self._grade = grade
        self._rng = rng
        self._known = [[0] * len(tree) for _ in memories]
        self._late: list[deque[tuple[float, int, int]]] = [deque() for _ in memories]
        for memory in memories:
            memory.changes = []

    def blocks(self, index: int, path: list[int], now: float) -> int:
        """Return the leading blocks that were announced, or are promised."""
        late, known = self._late[index], self._known[index]
        while late and late[0][0] <= now:
            _, segment, num_blocks = late.popleft()
            known[segment] = num_blocks
        resident, starts, ends = 0, self._tree.starts, self._tree.ends
        for segment in path:
            if known[segment]:
                resident = starts[segment] + known[segment]
            if resident < ends[segment]:
                break
        return max(resident, self._promises[index].promised_blocks(path))

    def stepped(self, index: int, now: float) -> None:
        """Send off the events of a step; a lost batch holds up those behind it."""
        changes = self._memories[index].changes
        if not changes:
            return
        late = self._late[index]
        due = now + self._grade.delay_s
        if self._rng.random() < self._grade.loss:
            due += HEALED_S
        if late and late[-1][0] > due:
            due = late[-1][0]
        late.extend((due, segment, count) for segment, count in changes)
        changes.clear()


def make_view(
    grade: ViewGrade, memories: list[KvMemory], trace: Trace, rng: Random
) -> MemoryView:
    """Return the view of *grade*."""
    assert trace.tree is not None
    if grade.capacity_error is not None:
        return MirrorView(memories, trace, grade.capacity_error)
    if grade.is_exact:
        return MemoryView(memories, trace.tree)
    return LateView(memories, trace.tree, grade, rng)
