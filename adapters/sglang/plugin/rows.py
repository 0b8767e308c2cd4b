"""The pages of a tree at one moment, read in slices."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from warmroute.adapters.sglang.plugin.ports import Data, Key
from warmroute.adapters.sglang.plugin.tree import Tree, full

_AT_ONCE = 128


class _Moment(NamedTuple):
    key: Key
    hashes: Sequence[str]
    seed: bytes | None
    parent: str | None
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

    __slots__ = ("_moments", "_tree")

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._moments: list[_Moment] = []
        last: dict[int, tuple[str | None, int]] = {tree.core.root_node.id: (None, 0)}
        for node in tree.nodes():
            parent, depth = last[node.parent.id]
            hashes, seed = tree.names(node)
            held = full(node)
            self._moments.append(
                _Moment(
                    node.key, hashes, seed, parent, depth, held.lock_ref, _tiers(held)
                )
            )
            last[node.id] = (hashes[-1] if hashes else parent, depth + len(hashes))

    def __repr__(self) -> str:
        return f"<Rows [Nodes: {len(self._moments)}]>"

    def read(self, with_tokens: bool) -> Iterator[list[list[object]]]:
        """Yield rows of hash, parent, depth, refs and tier, then tokens if wanted."""
        rows: list[list[object]] = []
        for moment in self._moments:
            for first in range(0, len(moment.hashes), _AT_ONCE):
                rows += self._rows(moment, first, with_tokens)
                if len(rows) >= _AT_ONCE:
                    yield rows
                    rows = []
        yield rows

    def _rows(
        self, moment: _Moment, first: int, with_tokens: bool
    ) -> Iterator[list[object]]:
        front = moment.hashes[first - 1] if first else moment.parent
        names = [] if front is None else [front]
        names += moment.hashes[first : first + _AT_ONCE]
        keys: list[int | None] = [*self._tree.keys_named(names, moment.seed)]
        if front is None:
            keys.insert(0, None)
        for at in range(1, len(keys)):
            page = first + at - 1
            content = self._content(moment, page) if with_tokens else []
            for tier in moment.tiers:
                depth = moment.depth + page
                yield [keys[at], keys[at - 1], depth, moment.refs, tier, *content]

    def _content(self, moment: _Moment, page: int) -> list[object]:
        size = self._tree.page_size
        tokens = moment.key.token_ids[page * size : (page + 1) * size]
        is_head = moment.depth + page == 0
        return [list(tokens), _extra_keys(moment.key) if is_head else None]


def _tiers(held: Data) -> tuple[str, ...]:
    on = (("gpu", held.value), ("host", held.host_value))
    return tuple(tier for tier, value in on if value is not None)


def _extra_keys(key: Key) -> list[object] | None:
    parts = [part for part in (key.extra_key, key.cache_salt) if part is not None]
    return list(parts) or None
