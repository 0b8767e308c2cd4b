"""The KV memory of a simulated engine: shared by running sequences and the cache.

Blocks are entered from the start of a prompt on, and go from its end on, the least
recently used first. So what is resident of a prompt is always a leading part, and
only the last resident segment of a prompt can lose blocks: a segment needs no more
than the number of its leading blocks that are resident. What runs *holds* the segment
it has reached, and with it everything in front.

A segment counts its own holds and those of its children that are held, so that taking
a hold climbs only as far as nobody held before. When the last child of a segment has
gone, the segment takes over its time of use, which is later than its own or it would
have been used alone since.
"""

from heapq import heappop, heappush

from warmroute.proxy.replay.prefix_tree import ROOT, PrefixTree


class KvMemory:
    """Which leading blocks of each segment are resident, and what may go.

    Args:
        tree: The prompts.
        block_size: Tokens a block.
        capacity_tokens: Tokens in all; None is without end.

    Attributes:
        capacity_tokens: Tokens in all; None is without end.
        changes: Where wanted, each change of a segment: it, and its resident blocks.
        private_tokens: Tokens of running sequences that are in no full prompt block.
        promised_tokens: Tokens that admitted prompts will still compute.
        resident_tokens: Tokens in blocks.
        held_tokens: Those that running sequences hold.
    """

    __slots__ = (
        "_block_size",
        "_children",
        "_holds",
        "_leaves",
        "_resident",
        "_stamp",
        "_stamps",
        "_tree",
        "capacity_tokens",
        "changes",
        "held_tokens",
        "private_tokens",
        "promised_tokens",
        "resident_tokens",
    )

    def __init__(
        self, tree: PrefixTree, block_size: int, capacity_tokens: int | None
    ) -> None:
        self._tree = tree
        self._block_size = block_size
        self.capacity_tokens = capacity_tokens
        self.changes: list[tuple[int, int]] | None = None
        self._resident = [0] * len(tree)
        self._children = [0] * len(tree)
        self._holds = [0] * len(tree)
        self._stamps = [0] * len(tree)
        self._leaves: list[tuple[int, int]] = []
        self._stamp = 0
        self.private_tokens = self.promised_tokens = 0
        self.resident_tokens = self.held_tokens = 0

    def __repr__(self) -> str:
        return (
            f"<KvMemory {self.resident_tokens} tokens in blocks, "
            f"{self.held_tokens} held, {self.private_tokens} private>"
        )

    @property
    def usage(self) -> float:
        """Return the share that running sequences take, as engines report it."""
        if not self.capacity_tokens:
            return 0.0
        return min(1.0, (self.held_tokens + self.private_tokens) / self.capacity_tokens)

    @property
    def free_tokens(self) -> int | None:
        """Return what a new sequence could take; None is without end."""
        if self.capacity_tokens is None:
            return None
        taken = self.held_tokens + self.private_tokens + self.promised_tokens
        return self.capacity_tokens - taken

    def reach(self, path: list[int]) -> int:
        """Return how many segments of *path* have resident blocks. O(log segments)."""
        resident = self._resident
        low, high = 0, len(path)
        while low < high:
            middle = (low + high) // 2
            if resident[path[middle]]:
                low = middle + 1
            else:
                high = middle
        return low

    def matched_blocks(self, path: list[int]) -> int:
        """Return how many leading blocks of a prompt are resident."""
        reach = self.reach(path)
        if not reach:
            return 0
        last = path[reach - 1]
        return self._tree.starts[last] + self._resident[last]

    def hold(self, segment: int) -> None:
        """Keep what is resident of *segment* and in front of it."""
        holds, parents = self._holds, self._tree.parents
        while segment:
            holds[segment] += 1
            if holds[segment] > 1:
                return
            self.held_tokens += self._resident[segment] * self._block_size
            segment = parents[segment]

    def let_go(self, segment: int) -> None:
        """Take back a `hold`; the blocks are the newest then."""
        holds, parents = self._holds, self._tree.parents
        self._stamp += 1
        while segment:
            self._stamps[segment] = self._stamp
            holds[segment] -= 1
            if holds[segment]:
                return
            self.held_tokens -= self._resident[segment] * self._block_size
            if self._resident[segment] and not self._children[segment]:
                heappush(self._leaves, (self._stamps[segment], segment))
            segment = parents[segment]

    def store(self, segment: int, num_blocks: int) -> None:
        """Make the blocks of a held *segment* resident, up to *num_blocks* of a prompt.

        All that is in front of it must be resident.
        """
        length = min(num_blocks, self._tree.ends[segment]) - self._tree.starts[segment]
        more = length - self._resident[segment]
        if more <= 0:
            return
        if not self._resident[segment]:
            self._children[self._tree.parents[segment]] += 1
        self._resident[segment] = length
        if self.changes is not None:
            self.changes.append((segment, length))
        self.resident_tokens += more * self._block_size
        self.held_tokens += more * self._block_size

    def trim(self) -> None:
        """Drop blocks, least recently used first, until all fits. O(log) a segment."""
        if self.capacity_tokens is None:
            return
        size = self._block_size
        over = self.resident_tokens + self.private_tokens - self.capacity_tokens
        while over > 0 and self._leaves:
            stamp, segment = self._leaves[0]
            if not self._may_go(segment, stamp):
                heappop(self._leaves)
                continue
            num_blocks = min(self._resident[segment], -(-over // size))
            self._resident[segment] -= num_blocks
            if self.changes is not None:
                self.changes.append((segment, self._resident[segment]))
            self.resident_tokens -= num_blocks * size
            over -= num_blocks * size
            if not self._resident[segment]:
                heappop(self._leaves)
                self._bare(self._tree.parents[segment], stamp)

    def _may_go(self, segment: int, stamp: int) -> bool:
        return (
            stamp == self._stamps[segment]
            and bool(self._resident[segment])
            and not self._children[segment]
            and not self._holds[segment]
        )

    def _bare(self, segment: int, stamp: int) -> None:
        """Note that a child of *segment*, last used at *stamp*, is gone."""
        if segment == ROOT:
            return
        self._children[segment] -= 1
        if stamp > self._stamps[segment]:
            self._stamps[segment] = stamp
        if not self._children[segment] and not self._holds[segment]:
            heappush(self._leaves, (self._stamps[segment], segment))
