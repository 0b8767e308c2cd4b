"""Which prompts of a tree were ever sent."""

from warmroute.proxy.replay.prefix_tree import PrefixTree


class SeenSegments:
    """An exact memory of all prompts; never forgets.

    Args:
        tree: The prompts.
    """

    __slots__ = ("_seen", "_tree")

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._seen = bytearray(len(tree))

    def __repr__(self) -> str:
        return f"<SeenSegments {sum(self._seen)} of {len(self._tree)}>"

    def enter(self, path: list[int]) -> int:
        """Return the leading blocks that were sent before, and remember them all.

        O(log segments) and the new ones.
        """
        seen, low, high = self._seen, 0, len(path)
        while low < high:
            middle = (low + high) // 2
            if seen[path[middle]]:
                low = middle + 1
            else:
                high = middle
        for segment in path[low:]:
            seen[segment] = 1
        return self._tree.ends[path[low - 1]] if low else 0
