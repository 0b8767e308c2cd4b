"""Prefixes that are kept from eviction until a deadline.

SGLang locks a node together with all in front of it, as it does for a request that
runs. So what is retained is always whole prefixes, and the cap counts all of their
pages, those that nobody named included.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from warmroute.adapters.sglang.plugin.ports import Node
from warmroute.adapters.sglang.plugin.tree import Tree, full

_NEVER = float("inf")


class Pin(NamedTuple):
    """One locked node.

    Args:
        node_id: The node; it keeps its id when the engine splits it.
        keys: Its pages when it was locked.
        deadline: When it is let go.
    """

    node_id: int
    keys: Sequence[int]
    deadline: float


class Pins:
    """Lock nodes of a tree for a time, and never too many pages of them.

    Args:
        tree: Whose nodes.
        cap_blocks: Most pages that may be locked.
        clock: Seconds that never go back.

    Attributes:
        due: When something has to be let go next; infinite while nothing is kept.
    """

    __slots__ = ("_clock", "_pins", "_tree", "cap_blocks", "due")

    def __init__(self, tree: Tree, cap_blocks: int, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._clock = clock
        self._pins: dict[int, Pin] = {}
        self.cap_blocks = cap_blocks
        self.due = _NEVER

    def __repr__(self) -> str:
        return f"<Pins [Nodes: {len(self._pins)}]>"

    @property
    def due_s(self) -> float | None:
        """Seconds until something is due; None while nothing is retained."""
        return None if self.due == _NEVER else max(0.0, self.due - self._clock())

    @property
    def num_blocks(self) -> int:
        """Pages locked now. O(nodes locked)."""
        return sum(map(self._tree.num_pages, self._locked().values()))

    def retain(
        self,
        keys: Sequence[int],
        found: Mapping[int, tuple[Node, int]],
        ttl_s: float,
    ) -> int:
        """Lock the leading resident pages of those named, as many as the cap allows.

        Args:
            keys: The pages, head first.
            found: Where they are.
            ttl_s: For how long; pages locked already stay until the later deadline.

        Returns:
            The pages of those named that are locked now.
        """
        self.expire()
        locked = self._locked()
        room = self.cap_blocks - sum(map(self._tree.num_pages, locked.values()))
        num_retained = 0
        for node, named in _leading(keys, found, self._tree):
            wanted = max(named) + 1
            num_pages, room = self._lock_within(locked, room, node, wanted, ttl_s)
            num_retained += sum(page < num_pages for page in named)
            if num_pages < wanted:
                break
        return num_retained

    def release(self, keys: Iterable[int]) -> int:
        """Let go of the named pages and of what is behind them in their nodes."""
        self.expire()
        names = set(keys)
        num_released = 0
        for pin in list(self._pins.values()):
            first = next((at for at, key in enumerate(pin.keys) if key in names), None)
            if first is not None:
                num_released += sum(key in names for key in pin.keys)
                self._shorten(pin, first)
        self._look_ahead()
        return num_released

    def expire(self) -> None:
        """Let go of what is due, and forget what a flush took away. O(1) if nothing."""
        now = self._clock()
        if now < self.due:
            return
        for pin in list(self._pins.values()):
            if pin.deadline <= now:
                self._let_go(pin)
        self._look_ahead()

    def _lock_within(
        self,
        locked: dict[int, Node],
        room: int,
        node: Node,
        num_pages: int,
        ttl_s: float,
    ) -> tuple[int, int]:
        """Lock the first pages of a node as far as there is room.

        Returns:
            How many are locked, and the room that is left.
        """
        path = self._tree.path(node.parent)
        ahead = [*takewhile(lambda one: one.id not in locked, path)]
        if node.id not in locked:
            num_ahead = sum(map(self._tree.num_pages, ahead))
            num_pages = min(num_pages, max(0, room - num_ahead))
            room -= num_ahead + num_pages if num_pages else 0
        if num_pages:
            front = self._lock(node, num_pages, ttl_s)
            locked.update((one.id, one) for one in (front, *ahead))
        return num_pages, room

    def _lock(self, node: Node, num_pages: int, ttl_s: float) -> Node:
        front = self._tree.cut(node, num_pages)
        deadline = self._clock() + ttl_s
        known = self._pins.get(front.id)
        if known is None:
            self._tree.core.inc_full_pin(front.id)
        else:
            deadline = max(deadline, known.deadline)
        self._pins[front.id] = Pin(front.id, self._tree.keys(front), deadline)
        self.due = min(self.due, deadline)
        return front

    def _let_go(self, pin: Pin) -> None:
        del self._pins[pin.node_id]
        if self._tree.by_id(pin.node_id) is not None:
            self._tree.core.dec_full_pin(pin.node_id)

    def _shorten(self, pin: Pin, num_kept: int) -> None:
        """Keep only the first pages of what was locked together."""
        node = self._tree.by_id(pin.node_id)
        if num_kept and node is not None:
            last = pin.keys[num_kept - 1]
            for one in self._tree.path(node):
                pages = self._tree.keys(one)
                if last in pages:
                    ttl_s = pin.deadline - self._clock()
                    self._lock_anew(one, pages.index(last) + 1, ttl_s, pin)
                    return
        self._let_go(pin)

    def _lock_anew(self, node: Node, num_pages: int, ttl_s: float, old: Pin) -> None:
        front = self._tree.cut(node, num_pages)
        if front.id != old.node_id:
            self._lock(front, self._tree.num_pages(front), ttl_s)
            self._let_go(old)

    def _locked(self) -> dict[int, Node]:
        """Return the nodes locked by pins, with all in front of them."""
        locked: dict[int, Node] = {}
        for pin in list(self._pins.values()):
            node = self._tree.by_id(pin.node_id)
            if node is None:  # the cache was flushed
                del self._pins[pin.node_id]
                continue
            for one in self._tree.path(node):
                if one.id in locked:
                    break
                locked[one.id] = one
        return locked

    def _look_ahead(self) -> None:
        self.due = min((pin.deadline for pin in self._pins.values()), default=_NEVER)


def _leading(
    keys: Sequence[int], found: Mapping[int, tuple[Node, int]], tree: Tree
) -> list[tuple[Node, list[int]]]:
    """Return nodes with the pages meant, up to the first key that is not on a page."""
    nodes: dict[int, tuple[Node, list[int]]] = {}
    for key in keys:
        node, page = found.get(key, (None, 0))
        if node is None or not tree.is_alive(node) or full(node).value is None:
            break
        nodes.setdefault(node.id, (node, []))[1].append(page)
    return list(nodes.values())
