"""All prompts of a trace as one tree: what they share is there once."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, overload

ROOT: Final = 0
"""The segment of no blocks, in front of all others."""


class PrefixTree:
    """A tree whose edges are runs of blocks that every prompt has whole or not at all.

    Each run is a *segment*, known by a number; a prompt is the segment that it ends
    in. An insert that ends or leaves within a segment splits it, and the lower part
    keeps the number, so that the numbers given out before still end where they did.

    Attributes:
        parents: The segment in front of each one.
        starts: Blocks in front of each segment.
        ends: Blocks up to and with each segment.
    """

    __slots__ = ("_children", "_ids", "ends", "parents", "starts")

    def __init__(self) -> None:
        self.parents: list[int] = [ROOT]
        self.starts: list[int] = [0]
        self.ends: list[int] = [0]
        self._ids: list[array[int]] = [array("Q")]
        self._children: dict[tuple[int, int], int] = {}

    def __repr__(self) -> str:
        return f"<PrefixTree {len(self)} segments>"

    def __len__(self) -> int:
        return len(self.parents)

    def insert(self, ids: "array[int]") -> int:
        """Enter a prompt by its block ids ("Q") and return its last segment.

        O(segments passed) and a comparison of memory.
        """
        at, depth, count = ROOT, 0, len(ids)
        while depth < count:
            child = self._children.get((at, ids[depth]))
            if child is None:
                return self._add(at, ids[depth:])
            segment = self._ids[child]
            same = _common(segment, ids, depth)
            at, depth = child, depth + same
            if same < len(segment):
                at = self._split(child, same)
        return at

    def path(self, segment: int) -> list[int]:
        """Return the segments from the start of the prompt to *segment*. O(them)."""
        parents, found = self.parents, []
        while segment:
            found.append(segment)
            segment = parents[segment]
        found.reverse()
        return found

    def place(self, path: Sequence[int], num_blocks: int) -> int:
        """Return where in *path* its first *num_blocks* end; -1 for none.

        O(log segments).
        """
        if not num_blocks:
            return -1
        ends, low, high = self.ends, 0, len(path)
        while low < high:
            middle = (low + high) // 2
            if ends[path[middle]] < num_blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def blocks(self, segment: int) -> "PromptBlocks":
        """Return the block ids of the prompt that ends in *segment*."""
        return PromptBlocks(self, segment)

    def ids(self, segment: int) -> "array[int]":
        """Return the block ids of *segment* alone."""
        return self._ids[segment]

    def _add(self, parent: int, ids: "array[int]") -> int:
        number = len(self.parents)
        self.parents.append(parent)
        self.starts.append(self.ends[parent])
        self.ends.append(self.ends[parent] + len(ids))
        self._ids.append(ids)
        self._children[parent, ids[0]] = number
        return number

    def _split(self, lower: int, length: int) -> int:
        """Put the first *length* blocks of *lower* into a segment of their own."""
        ids = self._ids[lower]
        upper = self._add(self.parents[lower], ids[:length])
        self.parents[lower] = upper
        self.starts[lower] = self.ends[upper]
        self._ids[lower] = ids[length:]
        self._children[upper, ids[length]] = lower
        return upper


class PromptBlocks(Sequence[int]):
    """The block ids of one prompt, read from the tree when they are asked for."""

    __slots__ = ("_segment", "_tree")

    def __init__(self, tree: PrefixTree, segment: int) -> None:
        self._tree = tree
        self._segment = segment

    def __repr__(self) -> str:
        return f"<PromptBlocks {len(self)}>"

    def __len__(self) -> int:
        return self._tree.ends[self._segment]

    def __iter__(self) -> Iterator[int]:
        tree = self._tree
        return chain.from_iterable(map(tree.ids, tree.path(self._segment)))

    def __reversed__(self) -> Iterator[int]:
        tree = self._tree
        runs = map(tree.ids, reversed(tree.path(self._segment)))
        return chain.from_iterable(map(reversed, runs))

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "array[int]": ...
    def __getitem__(self, index: int | slice) -> "int | array[int]":
        return array("Q", self)[index]


def _common(segment: "array[int]", ids: "array[int]", at: int) -> int:
    """Count the leading ids of *segment* that *ids* has from *at* on."""
    size = min(len(segment), len(ids) - at)
    if segment[:size] == ids[at : at + size]:
        return size
    low, high = 1, size  # the first id is equal, not all are
    while high - low > 1:
        middle = (low + high) // 2
        if segment[low:middle] == ids[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
