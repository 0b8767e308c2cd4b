"""Prefixes that are kept from eviction until a deadline.

SGLang locks a node together with all in front of it, as it does for a request that
runs. So what is retained is always whole prefixes, and the cap counts all of their
pages, those that nobody named included.
"""

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import NamedTuple

from warmroute.adapters.sglang.plugin.census import Census
from warmroute.adapters.sglang.plugin.ports import Node
from warmroute.adapters.sglang.plugin.tree import Tree, full
from warmroute.policies.kv.deadlines import Deadlines

_AT_ONCE = 512
_EXPIRED_AT_ONCE = 64

Found = MutableMapping[int, tuple[Node, int]]
"""Where keys are: the node, and the page counted from its end, the last one as -1."""

Named = dict[int, tuple[Node, list[int]]]
"""Nodes that are meant by their id, with the pages meant, counted from the end."""


class Pin(NamedTuple):
    """One locked node.

    Args:
        node_id: The node; it keeps its id and its end when the engine splits it.
        hashes: Names of its pages when it was locked.
        seed: What their keys are made with, too.
    """

    node_id: int
    hashes: Sequence[str]
    seed: bytes | None


class Pins:
    """Lock nodes of a tree for a time, and never too many pages of them.

    Args:
        tree: Whose nodes.
        cap_blocks: Most pages that may be locked.
        clock: Seconds that never go back.
    """

    __slots__ = ("_census", "_clock", "_deadlines", "_pins", "_tree", "cap_blocks")

    def __init__(self, tree: Tree, cap_blocks: int, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._clock = clock
        self._pins: dict[int, Pin] = {}
        self._deadlines = Deadlines()
        self._census = Census(tree)
        self.cap_blocks = cap_blocks

    def __repr__(self) -> str:
        return f"<Pins [Nodes: {len(self._pins)}]>"

    @property
    def due_s(self) -> float | None:
        """Seconds until something is due; None while nothing is retained."""
        due = self._deadlines.next_due
        return None if due is None else max(0.0, due - self._clock())

    @property
    def num_blocks(self) -> int:
        """Pages locked, as `retain` counted them last."""
        return self._census.num_pages

    def retain(self, keys: Sequence[int], found: Found, ttl_s: float) -> Iterator[int]:
        """Lock the leading resident pages of those named, as many as the cap allows.

        Args:
            keys: The pages, head first.
            found: Where they are; what is read is taken out.
            ttl_s: For how long; pages locked already stay until the later deadline.

        Yields:
            After each slice, how many pages of those named were locked in it.
        """
        named: Named = {}
        for _ in self._leading(keys, found, named):
            yield 0
        self._census.forget()  # the engine may have split or flushed what it counted
        looked = num_retained = 0
        for node, pages in named.values():
            if self._census.is_stale:
                for _ in self._census.count(self._pins):
                    yield 0
            is_whole, count = self._retain(node, pages, ttl_s)
            num_retained += count
            looked += len(pages)
            if not is_whole:
                break
            if looked >= _AT_ONCE:
                yield num_retained
                looked = num_retained = 0
        if self._census.is_stale:
            for _ in self._census.count(self._pins):
                yield 0
        yield num_retained

    def release(self, keys: Iterable[int]) -> Iterator[int]:
        """Let go of the named pages and of what is behind them in their nodes.

        Yields:
            After each slice, how many of those named were let go in it.
        """
        names = set(keys)
        looked = num_released = 0
        for pin in list(self._pins.values()):
            first, count = None, 0
            for at in range(0, len(pin.hashes), _AT_ONCE):
                some = self._tree.keys_named(pin.hashes[at : at + _AT_ONCE], pin.seed)
                pages = [page for page, key in enumerate(some, at) if key in names]
                if pages and first is None:
                    first = pages[0]
                count += len(pages)
                looked += len(some)
                if looked >= _AT_ONCE:
                    yield num_released
                    looked = num_released = 0
            if first is not None and self._pins.get(pin.node_id) is pin:
                self._shorten(pin, first)
                num_released += count
        yield num_released

    def expire(self) -> None:
        """Let go of some of what is due. O(1) if nothing is."""
        for node_id in self._deadlines.due(self._clock(), _EXPIRED_AT_ONCE):
            self._let_go(self._pins[node_id])

    def _leading(
        self, keys: Sequence[int], found: Found, named: Named
    ) -> Iterator[None]:
        """Sort pages by node, in slices, up to the first that is on no page."""
        for at, key in enumerate(keys, 1):
            node, page = found.pop(key, (None, 0))
            if node is None or not self._tree.is_alive(node):
                return
            if full(node).value is None:
                return
            named.setdefault(node.id, (node, []))[1].append(page)
            if at % _AT_ONCE == 0:
                yield

    def _retain(self, node: Node, pages: list[int], ttl_s: float) -> tuple[bool, int]:
        """Lock pages of one node; tell whether it was all of them, and how many."""
        if not self._tree.is_alive(node):
            return False, 0
        size = self._tree.num_pages(node)
        wanted = max(0, size + max(pages) + 1)
        num_pages = self._lock_within(node, wanted, ttl_s)
        is_whole = num_pages == wanted and size + min(pages) >= 0
        if is_whole:
            return True, len(pages)
        return False, sum(0 <= size + page < num_pages for page in pages)

    def _lock_within(self, node: Node, num_pages: int, ttl_s: float) -> int:
        """Lock the first pages of a node as far as there is room; return how many."""
        census, added = self._census, 0
        is_locked = node in census
        ahead = [] if is_locked else census.ahead(node.parent)
        if not is_locked:
            num_ahead = sum(map(self._tree.num_pages, ahead))
            room = self.cap_blocks - census.num_pages - num_ahead
            num_pages = min(num_pages, max(0, room))
            added = num_ahead + num_pages
        if num_pages:
            front = self._lock(node, num_pages, self._clock() + ttl_s)
            census.add([front, *ahead], added)
        return num_pages

    def _lock(self, node: Node, num_pages: int, deadline: float) -> Node:
        front = self._tree.cut(node, num_pages)
        known = self._deadlines.get(front.id)
        if known is None:
            self._tree.core.inc_full_pin(front.id)
        if known is None or known < deadline:
            self._deadlines.put(front.id, deadline, 0)
        self._pins[front.id] = Pin(front.id, *self._tree.names(front))
        return front

    def _let_go(self, pin: Pin) -> None:
        del self._pins[pin.node_id]
        self._deadlines.pop(pin.node_id)
        self._census.forget()
        if self._tree.by_id(pin.node_id) is not None:
            self._tree.core.dec_full_pin(pin.node_id)

    def _shorten(self, pin: Pin, num_kept: int) -> None:
        """Keep only the first pages of what was locked together.

        The node has the last of them, and those in front of it had the others.
        """
        node, end = self._tree.by_id(pin.node_id), len(pin.hashes)
        deadline = self._deadlines.get(pin.node_id)
        if num_kept and node is not None and deadline is not None:
            for one in self._tree.path(node):
                start = end - self._tree.num_pages(one)
                if start < num_kept:
                    self._lock(one, num_kept - start, deadline)
                    break
                end = start
        self._let_go(pin)
