"""The prefix index of one backend as a nested document, for people to look at."""

from collections.abc import Sequence
from heapq import nlargest
from itertools import islice

from warmroute.policies.kv.holders import NUM_TIERS, PROMISED, TIERS
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.run import Run

Node = dict[str, object]

MAX_DEPTH = 64
MAX_CHILDREN = 200

_MAX_LOOK = 64


def outline(index: PrefixIndex, names: Sequence[str], depth: int, now: float) -> Node:
    """Return the runs of a backend, *depth* levels deep.

    The root stands for the empty prefix. Each node has the newest children first,
    200 at most, and counts the others as ``omitted``. What is only promised is not
    there yet.

    Args:
        index: Where to look.
        names: The backend, or its ranks, of which the longest counts.
        depth: Levels below the root; 64 at most.
        now: Time from which ages count, on the clock of the stamps.
    """
    holders = [
        index.holders.slot(name) * NUM_TIERS + tier
        for tier in range(NUM_TIERS)
        if tier != PROMISED
        for name in names
    ]
    return _node(index.root, holders, min(depth, MAX_DEPTH), now)


def _node(run: Run, holders: Sequence[int], depth: int, now: float) -> Node:
    held: dict[str, int] = {}
    for holder in holders:
        if holder in run.used:
            tier = TIERS[holder % NUM_TIERS]
            held[tier] = max(held.get(tier, 0), run.held(holder) * run.tokens)
    stamps = [run.used[holder] for holder in holders if holder in run.used]
    node: Node = {
        "hash": f"{run.hashes[-1]:016x}" if run.hashes else "",
        "tokens": max(held.values(), default=0),
        "tiers": list(held),
        "hits": run.hits,
        "last_used_s": max(0.0, now - max(stamps)) if stamps else None,
        "children": [],
    }
    if depth > 0:
        shown, omitted = _children(run, holders)
        node["children"] = [_node(one, holders, depth - 1, now) for one in shown]
        if omitted:
            node["omitted"] = omitted
    return node


def _children(run: Run, holders: Sequence[int]) -> tuple[list[Run], int]:
    """Return the children under which the backend has blocks, the newest first."""
    children = (run.children or {}).values()
    mine = [one for one in children if _has_blocks(one, holders)]
    newest = nlargest(MAX_CHILDREN, mine, key=lambda one: one.last)
    return newest, len(mine) - len(newest)


def _has_blocks(run: Run, holders: Sequence[int]) -> bool:
    """Say whether the run or one near behind it is held; mostly the first is."""
    near = islice(run.walk(), _MAX_LOOK)
    return any(holder in member.used for member in near for holder in holders)
