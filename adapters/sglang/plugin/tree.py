"""The radix tree of one SGLang engine, as blocks of one page with a key each.

SGLang caches runs of pages: a node holds as many as requests have in common. Events
name pages, and so does warmroute, so what is named here is looked up page by page, and
a node that is meant in part is split at the page, as a request that ends there would.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from warmroute.adapters.sglang.plugin.ports import Cache, Data, Node

_MASK = (1 << 64) - 1
_DIGITS = 16
_AT_ONCE = 1_024
_FULL = 0

Namespaced = Callable[[int, bytes], int]
"""Makes the hash in events of a hash in the tree, where a namespace is published."""


class Tree:
    """Look up, split and drop nodes between two steps of the engine.

    Args:
        cache: The scheduler's cache.
        namespaced: SGLang's ``namespaced_block_hash``.
    """

    __slots__ = ("_cache", "_namespaced", "core", "page_size")

    def __init__(self, cache: Cache, namespaced: Namespaced) -> None:
        self._cache = cache
        self._namespaced = namespaced
        self.core = cache.tree_core
        self.page_size = self.core.page_size

    def __repr__(self) -> str:
        return f"<Tree [Nodes: {len(self.core._node_arena)}]>"

    def nodes(self) -> list[Node]:
        """List all nodes but the root, parents before children. O(nodes)."""
        found: list[Node] = []
        todo = list(self.core.root_node.children.values())
        while todo:
            node = todo.pop()
            found.append(node)
            todo.extend(node.children.values())
        return found

    def keys(self, node: Node) -> list[int]:
        """Return the key of each page of a node, as events name them, unsigned."""
        return self.keys_named(*self.names(node))

    def names(self, node: Node) -> tuple[Sequence[str], bytes | None]:
        """Return what `keys_named` makes a node's keys of; neither ever changes."""
        recorder = self.core.kv_events
        return recorder._node_event_hash_values(node), recorder._namespace_seed(node)

    def keys_named(self, hashes: Sequence[str], seed: bytes | None) -> list[int]:
        """Return the keys of pages by their names."""
        if seed is None:
            return [int(one[:_DIGITS], 16) for one in hashes]
        signed = (_signed(int(one[:_DIGITS], 16)) for one in hashes)
        return [self._namespaced(one, seed) & _MASK for one in signed]

    def num_pages(self, node: Node) -> int:
        """Return how many pages a node has."""
        return len(node.key) // self.page_size

    def is_alive(self, node: Node) -> bool:
        """Tell whether a node is still part of the tree."""
        return self.core._node_arena.get(node.id) is node

    def by_id(self, node_id: int) -> Node | None:
        """Return a node of the tree."""
        return self.core._node_arena.get(node_id)

    def path(self, node: Node) -> Iterator[Node]:
        """Yield a node and those in front of it, up to the first behind the root.

        That root is an earlier one if the engine has emptied its tree since.
        """
        while node.parent is not None:
            yield node
            node = node.parent

    def hashed(self) -> Iterator[None]:
        """Have every node know its hashes; yields after each few pages."""
        num_pages = 0
        for node in self.nodes():
            if self.is_alive(node):
                num_pages += len(self.names(node)[0])
                if num_pages >= _AT_ONCE:
                    yield
                    num_pages = 0

    def find(
        self, wanted: Iterable[int], found: dict[int, tuple[Node, int]]
    ) -> Iterator[None]:
        """Enter the node and page of each key into *found*, those in front first.

        Pages are counted from the end of their node, the last one as -1, because a
        node keeps its end when it is split. Yields after each few pages.
        """
        names: set[int] = set()
        for at, key in enumerate(wanted, 1):
            names.add(key)
            if at % _AT_ONCE == 0:
                yield
        for some in self._keyed():
            for node, page, keys in some:
                for at, key in enumerate(keys, page):
                    if key in names:
                        found[key] = (node, at)
            yield

    def _keyed(self) -> Iterator[list[tuple[Node, int, list[int]]]]:
        """Yield nodes with some of their keys, about a thousand pages at a time.

        With each stands the place of the first key, counted from the node's end. Those
        in front come before those behind.
        """
        some: list[tuple[Node, int, list[int]]] = []
        num_pages = 0
        for node in self._in_order():
            hashes, seed = self.names(node)
            for at in range(0, len(hashes), _AT_ONCE):
                keys = self.keys_named(hashes[at : at + _AT_ONCE], seed)
                some.append((node, at - len(hashes), keys))
                num_pages += len(keys)
                if num_pages >= _AT_ONCE:
                    yield some
                    some, num_pages = [], 0
        yield some

    def _in_order(self) -> Iterator[Node]:
        """Yield all nodes but the root, those in front first, while the tree changes.

        What the engine splits off in front of a node that waits for its turn is yielded
        with it. What is new may be left out.
        """
        root = self.core.root_node
        todo = [(node, root) for node in root.children.values()]
        while todo:
            last, parent = todo.pop()
            if self.is_alive(last):
                todo.extend((child, last) for child in last.children.values())
                path: list[Node] = []
                for node in self.path(last):
                    if node is parent:
                        break
                    path.append(node)
                yield from reversed(path)

    def cut(self, node: Node, num_pages: int) -> Node:
        """Split the first pages off a node; returns their new node.

        The node itself keeps its id and the rest. With none or all of its pages there
        is nothing to split, and it is returned as it is.
        """
        if not 0 < num_pages < self.num_pages(node):
            return node
        front, action = self.core._split_node(
            node.key, node, num_pages * self.page_size
        )
        if action is not None:
            self._cache._apply_cache_actions([action])
        return front

    def evict_tail(self, node: Node, num_pages: int) -> bool:
        """Drop the last pages of a leaf from device and host.

        Returns:
            Whether they are gone: what is used or followed stays.
        """
        if node not in self.core.evictable_device_leaves:
            return self._evict_host(node, num_pages)
        self.cut(node, self.num_pages(node) - num_pages)
        self._cache._evict_device_leaf(node.id, defaultdict(int))
        if self.is_alive(node):  # it has a copy on the host, which remains
            return self._evict_host(node, num_pages)
        return True

    def offload_tail(self, node: Node, num_pages: int) -> bool:
        """Give up the last device pages of a leaf whose host copy is complete."""
        if node not in self.core.evictable_device_leaves:
            return False
        if full(node).host_value is None:
            return False
        self.cut(node, self.num_pages(node) - num_pages)
        self._cache._evict_device_leaf(node.id, defaultdict(int))
        return True

    def _evict_host(self, node: Node, num_pages: int) -> bool:
        core = self.core
        if node not in core.evictable_host_leaves:
            return False
        self.cut(node, self.num_pages(node) - num_pages)
        device: dict[object, list[object]] = defaultdict(list)
        host: dict[object, list[object]] = defaultdict(list)
        actions: list[object] = []
        core._evict_host_leaf(node, defaultdict(int), device, host, actions)
        self._cache._free_values(device, host)
        self._cache._apply_cache_actions(actions)
        return True


def full(node: Node) -> Data:
    """Return what a node holds of the attention layers."""
    return node.component_data[_FULL]


def num_trailing(keys: Sequence[int], named: set[int]) -> int:
    """Return how many of the last keys are named."""
    count = 0
    for key in reversed(keys):
        if key not in named:
            break
        count += 1
    return count


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
