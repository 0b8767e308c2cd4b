"""What must always hold in the tree of runs; for tests and for doubt."""

from collections import Counter

from warmroute.policies.kv.run import Run
from warmroute.policies.kv.tree import (
    BLOCK_BYTES,
    EXTRA_BYTES,
    KEY_BYTES,
    MEMBER_BYTES,
    RUN_BYTES,
    Tree,
)


def check_integrity(tree: Tree) -> None:
    """Raise AssertionError unless every invariant of *tree* holds."""
    runs = list(tree.root.walk())
    assert not tree.root.hashes, "root has blocks"
    assert not tree.root.used, "root has holders"
    for run in runs:
        _check_children(run)
    runs.remove(tree.root)
    for run in runs:
        _check_held(run)
        _check_leaf(tree, run)
    _check_books(tree, runs)
    _check_holders(tree, runs)
    assert tree.num_bytes == _count_bytes(tree, runs), "bytes miscounted"
    assert tree.num_bytes <= tree.max_bytes or not runs, "cap exceeded"


def _check_children(run: Run) -> None:
    assert run.children is None or run.children, f"empty children of {run}"
    for first, child in (run.children or {}).items():
        assert child.parent is run, f"lost parent of {child}"
        assert child.hashes[0] == first, f"{child} under the wrong key"
        assert child.start == run.end, f"{child} not behind {run}"


def _check_held(run: Run) -> None:
    full = {holder for holder in range(run.full.bit_length()) if run.full >> holder & 1}
    partial = run.partial or {}
    assert run.partial is None or run.partial, f"empty partial of {run}"
    assert full | partial.keys() == run.used.keys(), f"stamps of {run} differ"
    assert not full & partial.keys(), f"{run} both whole and in part"
    for held in partial.values():
        assert 0 < held < len(run.hashes), f"{run} has an impossible part"
    assert run.last >= max(run.used.values(), default=0), f"{run} used later"
    assert run.tokens > 0, f"{run} has empty blocks"
    assert run.keys is None or run.keys, f"empty keys of {run}"
    for holder, keys in (run.keys or {}).items():
        assert len(keys) == run.held(holder), f"{run} has blocks without a key"


def _check_leaf(tree: Tree, run: Run) -> None:
    if not run.children:
        assert run.full, f"leaf {run} ends in blocks that nobody has"
        assert run in tree.leaves, f"leaf {run} cannot be evicted"
    for holder in run.used:
        recency = tree.holders.all[holder].recency
        assert recency is None or run in recency, f"{run} cannot be evicted"


def _check_books(tree: Tree, runs: list[Run]) -> None:
    assert tree.num_runs == len(runs), "runs miscounted"
    assert tree.num_blocks == sum(len(run.hashes) for run in runs), "blocks miscounted"
    distinct = {block for run in runs for block in run.hashes}
    assert len(distinct) == tree.num_blocks, "a block is in two places"


def _check_holders(tree: Tree, runs: list[Run]) -> None:
    blocks: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    known: dict[int, dict[int, Run]] = {}
    named: dict[int, set[Run]] = {}
    for run in runs:
        for holder in run.used:
            num_blocks = run.held(holder)
            blocks[holder] += num_blocks
            tokens[holder] += num_blocks * run.tokens
        for holder, keys in (run.keys or {}).items():
            known.setdefault(holder, {}).update((key, run) for key in keys)
            named.setdefault(holder, set()).add(run)
    for number, owner in enumerate(tree.holders.all):
        assert owner.blocks == blocks[number], f"blocks of {number} miscounted"
        assert owner.tokens == tokens[number], f"tokens of {number} miscounted"
        assert owner.capacity is None or owner.tokens <= owner.capacity, "too full"
        assert owner.known.copy() == known.get(number, {}), f"keys of {number} are lost"
        marked = owner.known.runs()
        assert len(marked) == len(set(marked)), f"a run of {number} has two marks"
        assert set(marked) == named.get(number, set()), f"runs of {number} are lost"
        for key, num_extra in owner.extra.items():
            assert num_extra > 0, "empty extra count"
            assert owner.known.get(key), "extra count of a block that is gone"


def _count_bytes(tree: Tree, runs: list[Run]) -> int:
    return (
        len(runs) * RUN_BYTES
        + sum(len(run.used) for run in runs) * MEMBER_BYTES
        + sum(len(run.hashes) for run in runs) * BLOCK_BYTES
        + sum(len(owner.known) for owner in tree.holders.all) * KEY_BYTES
        + sum(len(owner.extra) for owner in tree.holders.all) * EXTRA_BYTES
    )
