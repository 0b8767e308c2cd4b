"""What requests in flight will leave on a simulated engine."""

from warmroute.proxy.replay.prefix_tree import PrefixTree


class Promises:
    """Count the prompts in flight on one engine, by the segments they pass.

    A segment counts the prompts that end in it and its children that count any, so
    that entering one climbs only to the first segment that is known.

    Args:
        tree: The prompts.
    """

    __slots__ = ("_counts", "_tree")

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._counts: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Promises of {len(self._counts)} segments>"

    def enter(self, segment: int) -> None:
        """Count a prompt that ends in *segment*."""
        counts, parents = self._counts, self._tree.parents
        while segment:
            known = counts.get(segment, 0)
            counts[segment] = known + 1
            if known:
                return
            segment = parents[segment]

    def leave(self, segment: int) -> None:
        """Take back an `enter`."""
        counts, parents = self._counts, self._tree.parents
        while segment:
            left = counts[segment] - 1
            if left:
                counts[segment] = left
                return
            del counts[segment]
            segment = parents[segment]

    def promised_blocks(self, path: list[int]) -> int:
        """Return how many leading blocks a prompt shares with those in flight."""
        counts, low, high = self._counts, 0, len(path)
        while low < high:
            middle = (low + high) // 2
            if path[middle] in counts:
                low = middle + 1
            else:
                high = middle
        return self._tree.ends[path[low - 1]] if low else 0
