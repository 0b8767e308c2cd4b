"""Which nodes pins lock, with all in front of them, and how many pages those have."""

from collections.abc import Collection, Iterator
from itertools import takewhile

from warmroute.adapters.sglang.plugin.ports import Node
from warmroute.adapters.sglang.plugin.tree import Tree

_AT_ONCE = 512


class Census:
    """Count what is locked, in slices, and keep the count while more is locked.

    The engine may split nodes meanwhile: their pages were counted, and those of the new
    node in front are counted again if more is locked behind it, so the count may be
    too large until the next one, and never too small.

    Args:
        tree: Whose nodes.

    Attributes:
        num_pages: Pages locked, as far as is counted.
        is_stale: Whether something was let go since.
    """

    __slots__ = ("_changes", "_nodes", "_tree", "is_stale", "num_pages")

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._nodes: dict[int, Node] = {}
        self._changes = 0
        self.num_pages = 0
        self.is_stale = True

    def __repr__(self) -> str:
        return f"<Census [Nodes: {len(self._nodes)}, pages: {self.num_pages}]>"

    def __contains__(self, node: Node) -> bool:
        return node.id in self._nodes

    def count(self, pinned: Collection[int]) -> Iterator[None]:
        """Count all that is in front of pinned nodes, begun anew when it changes."""
        is_over = False
        while not is_over:
            nodes: dict[int, Node] = {}
            changes, num_pages = self._changes, 0
            for node in self._locked(list(pinned), nodes):
                nodes[node.id] = node
                num_pages += self._tree.num_pages(node)
                if len(nodes) % _AT_ONCE == 0:
                    yield
                    if changes != self._changes:
                        break
            else:
                is_over = True
        self._nodes, self.num_pages, self.is_stale = nodes, num_pages, False

    def ahead(self, node: Node) -> list[Node]:
        """Return a node and those in front of it that are not locked."""
        return [*takewhile(lambda one: one not in self, self._tree.path(node))]

    def add(self, nodes: Collection[Node], num_pages: int) -> None:
        """Count nodes that were locked, with so many pages that were not."""
        self._nodes.update((one.id, one) for one in nodes)
        self.num_pages += num_pages
        self._changes += 1

    def forget(self) -> None:
        """Count no longer on this: something was let go."""
        self._changes += 1
        self.is_stale = True

    def _locked(self, pinned: list[int], known: dict[int, Node]) -> Iterator[Node]:
        for node_id in pinned:
            node = self._tree.by_id(node_id)
            if node is not None:
                yield from takewhile(
                    lambda one: one.id not in known, self._tree.path(node)
                )
