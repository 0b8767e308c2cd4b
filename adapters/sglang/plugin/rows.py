"""The pages of a tree at one moment, read in slices."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from warmroute.adapters.sglang.plugin.ports import Key, Node
from warmroute.adapters.sglang.plugin.tree import Tree, full

_AT_ONCE = 128


class _Moment(NamedTuple):
    key: Key
    pages: Sequence[int]
    parent: int | None
    depth: int
    refs: int
    tiers: tuple[str, ...]


class Rows:
    """Take down a tree at once, O(nodes), and read its pages later.

    What a node is made of never changes; a split gives both halves something new. So
    what was taken down stays what it was, whatever the engine does meanwhile.

    Args:
        tree: The tree, whose nodes all know their hashes.
    """

    __slots__ = ("_moments", "_page_size")

    def __init__(self, tree: Tree) -> None:
        self._page_size = tree.page_size
        self._moments: list[_Moment] = []
        last: dict[int, tuple[int | None, int]] = {tree.core.root_node.id: (None, 0)}
        for node in tree.nodes():
            parent, depth = last[node.parent.id]
            pages = tree.keys(node)
            self._moments.append(_moment(node, pages, parent, depth))
            last[node.id] = (pages[-1] if pages else parent, depth + len(pages))

    def __repr__(self) -> str:
        return f"<Rows [Nodes: {len(self._moments)}]>"

    def read(self, with_tokens: bool) -> Iterator[list[list[object]]]:
        """Yield rows of hash, parent, depth, refs and tier, then tokens if wanted."""
        rows: list[list[object]] = []
        for moment in self._moments:
            for page in range(len(moment.pages)):
                row = self._row(moment, page, with_tokens)
                rows += ([*row[:4], tier, *row[5:]] for tier in moment.tiers)
                if len(rows) >= _AT_ONCE:
                    yield rows
                    rows = []
        yield rows

    def _row(self, moment: _Moment, page: int, with_tokens: bool) -> list[object]:
        parent = moment.pages[page - 1] if page else moment.parent
        row: list[object] = [
            moment.pages[page],
            parent,
            moment.depth + page,
            moment.refs,
            None,
        ]
        if with_tokens:
            first = page * self._page_size
            tokens = moment.key.token_ids[first : first + self._page_size]
            row += [list(tokens), _extra_keys(moment.key) if parent is None else None]
        return row


def _moment(
    node: Node, pages: Sequence[int], parent: int | None, depth: int
) -> _Moment:
    held = full(node)
    on = (("gpu", held.value), ("host", held.host_value))
    tiers = tuple(tier for tier, value in on if value is not None)
    return _Moment(node.key, pages, parent, depth, held.lock_ref, tiers)


def _extra_keys(key: Key) -> list[object] | None:
    parts = [part for part in (key.extra_key, key.cache_salt) if part is not None]
    return list(parts) or None
