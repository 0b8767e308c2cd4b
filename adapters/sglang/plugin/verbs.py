"""The verbs of KV control, done to one SGLang scheduler between its steps.

The engine may step between any two parts of an answer, so each verb takes the tree as
it finds it.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from warmroute.adapters.kv_plugin.jobs import Part
from warmroute.adapters.kv_plugin.verbs import Arguments, EngineVerbs, named
from warmroute.adapters.sglang.plugin.pins import Pins
from warmroute.adapters.sglang.plugin.ports import Node
from warmroute.adapters.sglang.plugin.publishing import Publishing
from warmroute.adapters.sglang.plugin.ranking import Ranking
from warmroute.adapters.sglang.plugin.rows import Rows
from warmroute.adapters.sglang.plugin.tree import Tree, full, num_trailing

HashPages = Callable[[Sequence[int], str | None, int], list[str]]
Found = dict[int, tuple[Node, int]]
Nodes = dict[int, Node]

_HASHED = 64
_LOOKED_AT = 1_024
_DIGITS = 16


class Verbs(EngineVerbs):
    """Perform the verbs on the cache of one scheduler.

    Args:
        tree: The cache.
        pins: Holds what is retained.
        ranking: Says who is evicted first.
        publishing: Publishes what changed.
        hash_pages: Hashes tokens as the engine does, behind a hash.
        salted: Hash in front of a salted prompt.
        faults: Why some verbs do not work here.
    """

    __slots__ = (
        "_hash_pages",
        "_pins",
        "_publishing",
        "_ranking",
        "_salted",
        "_tree",
    )

    def __init__(
        self,
        tree: Tree,
        pins: Pins,
        ranking: Ranking,
        publishing: Publishing,
        hash_pages: HashPages,
        salted: Callable[[str], str],
        faults: Mapping[str, str],
    ) -> None:
        super().__init__(faults)
        self._tree = tree
        self._pins = pins
        self._ranking = ranking
        self._publishing = publishing
        self._hash_pages = hash_pages
        self._salted = salted

    def __repr__(self) -> str:
        return f"<Verbs on {self._tree!r}>"

    def hashes(self, arguments: Arguments) -> Iterator[Part]:
        """Hash the full pages of a prompt, in slices."""
        size = self._tree.page_size
        tokens = array("q", cast(Sequence[int], arguments["token_ids"]))
        salt = cast(str | None, arguments.get("cache_salt"))
        parent = None if salt is None else self._salted(salt)
        whole = len(tokens) // size * size
        for at in range(0, whole, _HASHED * size):
            some = tokens[at : min(at + _HASHED * size, whole)]
            digests = self._hash_pages(some, parent, size)
            parent = digests[-1]
            yield {"hashes": [int(one[:_DIGITS], 16) for one in digests]}
        yield {"hashes": []}

    def snapshot(self, arguments: Arguments) -> Iterator[Part]:
        """List what is cached at this moment, depths with it, in no order."""
        for _ in self._tree.hashed():
            yield {}
        with_tokens = bool(arguments.get("token_ids"))
        seq = self._publishing.announce()
        rows = Rows(self._tree)
        yield {"seq": seq, "block_size": self._tree.page_size}
        for some in rows.read(with_tokens):
            yield {"rows": some}

    def flush(self, arguments: Arguments) -> Iterator[Part]:
        """Drop everything that nobody uses."""
        nodes = self._tree.nodes()
        known = {node.id for node in nodes}
        for node in reversed(nodes):
            if self._tree.is_alive(node):
                yield {"dropped": self._drop_upwards(node, known)}
        used = sum(map(self._tree.num_pages, self._tree.nodes()))
        yield {"dropped": 0, "used": used, "empty": not used}

    def evict(self, arguments: Arguments) -> Iterator[Part]:
        """Drop the named pages from device and host, suffix first."""
        keys, found = named(arguments), cast(Found, {})
        for _ in self._tree.find(keys, found):
            yield {}
        left, nodes = set(keys), cast(Nodes, {})
        for _ in self._alive(found, nodes):
            yield {}
        for node in reversed(nodes.values()):
            evicted = self._evict_upwards(node, left)
            if evicted:
                yield {"evicted": evicted}
        for at in range(0, len(keys), _LOOKED_AT):
            some = [key for key in keys[at : at + _LOOKED_AT] if key in left]
            yield {"kept": [[key, self._reason(key, found)] for key in some]}

    def retain(self, arguments: Arguments) -> Iterator[Part]:
        """Keep the leading resident pages of those named."""
        keys, found = named(arguments), cast(Found, {})
        for _ in self._tree.find(keys, found):
            yield {}
        num_retained = 0
        for num in self._pins.retain(keys, found, cast(float, arguments["ttl_s"])):
            num_retained += num
            yield {}
        total = self._pins.num_blocks
        yield {"retained": num_retained, "total": total, "cap": self._pins.cap_blocks}

    def release(self, arguments: Arguments) -> Iterator[Part]:
        """Let go of the named pages."""
        for num in self._pins.release(named(arguments)):
            yield {"changed": num}

    def demote(self, arguments: Arguments) -> Iterator[Part]:
        """Make the named pages the next victims, where nothing unnamed is behind."""
        nodes: list[Node] = []
        num_demoted = 0
        for node, count in self._tails(named(arguments)):
            if node is None:
                yield {"changed": 0}
            elif not full(node).lock_ref:
                self._tree.cut(node, self._tree.num_pages(node) - count)
                nodes.append(node)
                num_demoted += count
        self._ranking.demote(nodes)
        yield {"changed": num_demoted}

    def offload(self, arguments: Arguments) -> Iterator[Part]:
        """Give up the device pages of what the host has, suffix first."""
        for node, count in self._tails(named(arguments)):
            done = node is not None and self._tree.offload_tail(node, count)
            yield {"changed": count if done else 0}

    def policy(self, arguments: Arguments) -> Iterator[Part]:
        """Read or change who is evicted first."""
        name = cast(str | None, arguments.get("name"))
        if name is not None:
            options = cast(dict[str, object], arguments.get("options") or {})
            self._ranking.change(name, options)
        yield {
            "name": self._ranking.name,
            "options": self._ranking.options,
            "available": self._ranking.names,
        }

    def expire(self, arguments: Arguments) -> Iterator[Part]:
        """Say when something retained is due next."""
        yield {"due_s": self._pins.due_s}

    def _tails(self, keys: Sequence[int]) -> Iterator[tuple[Node | None, int]]:
        """Yield nodes that end with named pages, deepest first, and how many."""
        found: Found = {}
        for _ in self._tree.find(keys, found):
            yield None, 0
        wanted, nodes = set(keys), cast(Nodes, {})
        for _ in self._alive(found, nodes):
            yield None, 0
        for node in reversed(nodes.values()):
            if self._tree.is_alive(node):
                count = num_trailing(self._tree.keys(node), wanted)
                if count:
                    yield node, count

    def _alive(self, found: Found, nodes: Nodes) -> Iterator[None]:
        """Enter the nodes found into *nodes*, those in front first, in slices."""
        for at, (node, _) in enumerate(found.values(), 1):
            if node.id not in nodes and self._tree.is_alive(node):
                nodes[node.id] = node
            if at % _LOOKED_AT == 0:
                yield

    def _evict_upwards(self, node: Node, left: set[int]) -> list[int]:
        """Drop the named end of a node, and what it was the only one behind."""
        evicted: list[int] = []
        while node is not self._tree.core.root_node and self._tree.is_alive(node):
            keys, parent = self._tree.keys(node), node.parent
            count = num_trailing(keys, left)
            if not count or not self._tree.evict_tail(node, count):
                break
            evicted += reversed(keys[-count:])
            left.difference_update(keys[-count:])
            if count < len(keys):
                break
            node = parent
        return evicted

    def _drop_upwards(self, node: Node, known: set[int]) -> int:
        """Drop a node, and those in front of it that nothing else is behind."""
        num_dropped = 0
        while node is not self._tree.core.root_node and node.id in known:
            parent, count = node.parent, self._tree.num_pages(node)
            if not self._tree.evict_tail(node, count):
                break
            num_dropped += count
            node = parent
        return num_dropped

    def _reason(self, key: int, found: Found) -> str:
        node, _ = found.get(key, (None, 0))
        if node is None or not self._tree.is_alive(node):
            return "absent"
        return "referenced" if full(node).lock_ref else "followed"
