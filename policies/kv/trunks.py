"""The prefix index of all backends as one bounded tree, for people to look at.

A survey of a large index takes longer than an event loop may be held up, so it is a
generator that stops every few hundred steps. The index may change in between: a run
that is no longer where it was found is left out, and the next survey has it right.

Each run counts the prompts that passed it, so a run never counts less than one behind
it, and the best of what is left is always a child of what was taken.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from heapq import heappop, heappush, nlargest
from itertools import count
from typing import Final

from warmroute.policies.kv.holders import NUM_TIERS, PROMISED, TIERS
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.run import Run

Node = dict[str, object]
Survey = Generator[None, None, Node]

MAX_NODES: Final = 1000
MAX_BRANCHES: Final = 64
MAX_PARTS: Final = 16
MAX_ENDS: Final = 8

_HALF_LIFE_S: Final = 600.0
_WORK_A_STEP: Final = 512


def survey(
    index: PrefixIndex,
    backends: Mapping[str, Sequence[str]],
    max_nodes: int,
    now: float,
) -> Survey:
    """Find the most used prefixes of all backends; the result is returned at last.

    Runs that only continue another are joined to it.
    O(children of the runs taken + holders of those runs).

    Args:
        index: Where to look.
        backends: What each one's ranks are called in the index, it alone having its
            own name; a node names them by their position here.
        max_nodes: Runs taken; 1000 at most.
        now: Time from which ages count, on the clock of the stamps.

    Returns:
        ``backends``, ``blocks`` (of each on its GPU), ``num_runs``, ``num_blocks``,
        ``num_shown`` and ``root``, a node as `Describer.node` makes it, with
        ``children`` and the number of others as ``omitted``.
    """
    describer = Describer(index, backends, now)
    root = describer.node(index.root)
    heap: list[tuple[float, int, Run, Run, Node]] = []
    serial, num_shown, work = count(), 0, 0
    yield from _offer(heap, serial, index.root, root, now)
    while heap and num_shown < min(max_nodes, MAX_NODES):
        _, _, run, parent, above = heappop(heap)
        if run.parent is not parent:
            continue
        node = _adopt(above, describer.node(run))
        num_shown += 1
        last, work = _join(describer, node, run, work + len(run.used))
        if work > _WORK_A_STEP:
            work = 0
            yield
        yield from _offer(heap, serial, last, node, now)
    return {**describer.totals(), "num_shown": num_shown, "root": root}


def _join(describer: "Describer", node: Node, run: Run, work: int) -> tuple[Run, int]:
    """Join what only continues *run* to its node; return the last run and the work."""
    work += 1 + len(run.children or ())
    while (behind := _continuation(run)) is not None:
        describer.lengthen(node, run := behind)
        work += 1 + len(run.children or ())
    return run, work


def _continuation(run: Run) -> Run | None:
    """Return the only run behind *run*, if the same backends hold all of both.

    Chats leave such chains: a run ends wherever a prompt once did.
    """
    if run.partial is not None or run.children is None or len(run.children) != 1:
        return None
    (behind,) = run.children.values()
    is_alike = behind.partial is None and behind.full == run.full
    return behind if is_alike and behind.tokens == run.tokens else None


def _offer(
    heap: list[tuple[float, int, Run, Run, Node]],
    serial: Iterator[int],
    run: Run,
    node: Node,
    now: float,
) -> Generator[None, None, None]:
    """Put the children of *run* that are used most up for choice."""

    def weight(child: Run) -> float:
        age = max(0.0, now - child.last)
        return float((child.hits + 1) * 2.0 ** (-age / _HALF_LIFE_S))

    children = list((run.children or {}).values())
    node["omitted"] = len(children)
    best: list[Run] = []
    for at in range(0, len(children), _WORK_A_STEP):
        if at:
            yield
        some = children[at : at + _WORK_A_STEP]
        best = nlargest(MAX_BRANCHES, [*best, *some], key=weight)
    for child in best:
        heappush(heap, (-weight(child), next(serial), child, run, node))


def _adopt(above: Node, node: Node) -> Node:
    children, omitted = above["children"], above["omitted"]
    assert isinstance(children, list)
    assert isinstance(omitted, int)
    children.append(node)
    above["omitted"] = omitted - 1
    return node


class Describer:
    """Write down runs: who has how much of them, and how they are used.

    Sets of backends are hexadecimal numbers: bit *n* is the *n*-th one. A backend has
    what the best of its ranks has.
    """

    __slots__ = ("_index", "_names", "_now", "_places", "_ranks")

    def __init__(
        self, index: PrefixIndex, backends: Mapping[str, Sequence[str]], now: float
    ) -> None:
        find = index.holders.slot
        self._index = index
        self._now = now
        self._names = list(backends)
        self._ranks = [[find(rank) for rank in ranks] for ranks in backends.values()]
        self._places = {
            slot: at for at, slots in enumerate(self._ranks) for slot in slots
        }

    def __repr__(self) -> str:
        return f"<Describer [Backends: {len(self._ranks)}]>"

    def totals(self) -> Node:
        """Return the backends, the blocks that each has on its GPU, and of them all."""
        index = self._index
        blocks = [
            sum(index.blocks(slot * NUM_TIERS) for slot in slots)
            for slots in self._ranks
        ]
        return {
            "backends": self._names,
            "blocks": blocks,
            "num_runs": index.num_runs,
            "num_blocks": index.num_blocks,
        }

    def node(self, run: Run) -> Node:
        """Return a run without its children.

        ``id`` is the hash of its first block, which stays when its end grows;
        ``hash`` that of its last. ``held`` are the backends with all of it on the GPU,
        ``part`` the tokens of up to 16 that have a part, ``host`` and ``disk`` those
        with any of it there.
        """
        whole, part, lower = self._held(run)
        first, last = (run.hashes[0], run.hashes[-1]) if run.hashes else (0, 0)
        node: Node = {
            "id": f"{first:016x}",
            "hash": f"{last:016x}",
            "tokens": len(run.hashes) * run.tokens,
            "start": run.start * run.tokens,
            "hits": run.hits,
            "last_used_s": max(0.0, self._now - run.last) if run.hashes else None,
            "num_held": whole.bit_count() + len(part),
            "held": f"{whole:x}",
            "children": [],
            "omitted": 0,
        }
        if part:
            some = sorted(part.items())[:MAX_PARTS]
            node["part"] = [[at, num * run.tokens] for at, num in some]
        node |= {tier: f"{bits:x}" for tier, bits in lower.items()}
        return node

    def lengthen(self, node: Node, behind: Run) -> None:
        """Join a run that continues it to *node*; use and age stay its own.

        ``ends`` are the hashes at which the last eight joined runs met.
        """
        tokens, ends = node["tokens"], node.setdefault("ends", [])
        assert isinstance(tokens, int)
        assert isinstance(ends, list)
        ends.append(node["hash"])
        del ends[:-MAX_ENDS]
        node["tokens"] = tokens + len(behind.hashes) * behind.tokens
        node["hash"] = f"{behind.hashes[-1]:016x}"

    def _held(self, run: Run) -> tuple[int, dict[int, int], dict[str, int]]:
        whole, lower = 0, dict[str, int]()
        part: dict[int, int] = {}
        for holder in run.used:
            slot, tier = divmod(holder, NUM_TIERS)
            place = self._places.get(slot)
            if place is None:
                continue
            if tier > PROMISED:
                name = TIERS[tier]
                lower[name] = lower.get(name, 0) | 1 << place
            elif run.full >> holder & 1:
                whole |= 1 << place
            else:
                part[place] = max(part.get(place, 0), run.held(holder))
        for place in [place for place in part if whole >> place & 1]:
            del part[place]
        return whole, part, lower
