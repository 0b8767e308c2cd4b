"""The prefix index: which backends have which prefix cached, in which tier.

One tree over chained block hashes serves all backends. A node is a `Run` of
consecutive blocks; a hash names its whole prefix, so walking a prompt down the tree
compares one hash a run, and the runs passed hold the answer for every backend.

Invariants, which `check_integrity` verifies:

- Runs part where chains part, where an inserted chain ends, and where a holder has a
  hole. So a holder has a leading part of a run, and its stamp there is exact.
- The last block of a leaf has a holder. Blocks in front of held ones stay as
  structure, held or not, so a present block has all blocks in front of it.
- Two sources feed it. `insert` is a set operation for what was sent; `store` and
  `remove_block` count, for engines that announce the same block more than once.
  Only announced blocks are found by hash, the others save that memory.
- `num_bytes` never exceeds ``max_bytes`` when a call returns: the least recently
  used leaves of all holders make room, deepest blocks first.
"""

from collections.abc import Sequence

from warmroute.policies.kv.holders import NUM_TIERS
from warmroute.policies.kv.integrity import check_integrity
from warmroute.policies.kv.match import Match
from warmroute.policies.kv.run import Run
from warmroute.policies.kv.tree import Tree


class PrefixIndex(Tree):
    """Map prefixes to the holders that have them, in bounded memory.

    A holder is the number of one tier of one backend, from `add_holder`. Stamps are
    numbers that grow from call to call; equal stamps mean the same use. Nothing here
    reads a clock or blocks. The class is the interface for a native twin.

    Args:
        max_bytes: Cap on `num_bytes`, shared by all backends.
    """

    def __init__(self, max_bytes: int = 2**28) -> None:
        super().__init__(max_bytes)

    def __repr__(self) -> str:
        return (
            f"<PrefixIndex [Blocks: {self.num_blocks}, runs: {self.num_runs}, "
            f"{self.num_bytes} of {self.max_bytes} bytes]>"
        )

    def add_holder(self, name: str, tier: str = "gpu") -> int:
        """Return the number of *tier* (gpu, host, disk) of backend *name*."""
        return self.holders.add(name, tier)

    def remove_backend(self, name: str) -> None:
        """Forget backend *name*, and free its holders' numbers for others."""
        first = self.holders.slot(name) * NUM_TIERS
        for holder in range(first, first + NUM_TIERS):
            self.remove_holder(holder)
        self.holders.remove(name)

    def blocks(self, holder: int) -> int:
        """Count the blocks that *holder* has."""
        return self.holders.all[holder].blocks

    def tokens(self, holder: int) -> int:
        """Count the tokens in the blocks that *holder* has."""
        return self.holders.all[holder].tokens

    def match(self, hashes: Sequence[int]) -> Match:
        """Return the leading blocks of a chain that each backend has, by tier.

        Changes nothing. O(runs on the path + backends).
        """
        path, depth = self.path(hashes)
        return Match(path, depth, self.holders)

    def last_used(self, holder: int, hashes: Sequence[int]) -> float | None:
        """Return when the deepest leading block that *holder* has was last used."""
        stamp = None
        for run in self.path(hashes)[0]:
            if holder not in run.used:
                break
            stamp = run.used[holder]
        return stamp

    def insert(
        self, holder: int, hashes: Sequence[int], tokens: int, stamp: float
    ) -> int:
        """Add a chain from its first block on, and mark all of it as used.

        O(runs on the path) for what is there already, and O(1) a new block. What
        does not fit in the holder's capacity or in the cap goes from the tail.

        Args:
            holder: Who was sent these blocks.
            hashes: Block hashes from the first block of the prompt on.
            tokens: Tokens a block; runs that exist keep theirs.
            stamp: Greater than all before.

        Returns:
            The leading blocks that the holder had before.
        """
        if not hashes:
            return 0
        self.holders.all[holder].mirrored = True
        path, depth = self.path(hashes)
        if path and depth < path[-1].end:
            path[-1] = self.split(path[-1], depth - path[-1].start)
        num_held = 0
        for run in path:
            held = self.hold(run, holder, len(run.hashes), stamp)
            if num_held == run.start:
                num_held += held
            run.hits += 1
        if depth < len(hashes):
            parent = path[-1] if path else self.root
            self.append(parent, holder, hashes[depth:], tokens, stamp)
        self.enforce(holder)
        return num_held

    def touch(self, holder: int, hashes: Sequence[int], stamp: float) -> None:
        """Mark the blocks of a chain that *holder* has as used. O(runs)."""
        path, depth = self.path(hashes)
        for run in path:
            if holder in run.used and run.end <= depth:
                run.used[holder] = run.last = stamp

    def store(
        self,
        holder: int,
        parent_hash: int | None,
        hashes: Sequence[int],
        tokens: int,
        stamp: float,
    ) -> bool:
        """Count blocks that an engine says it has stored behind *parent_hash*.

        A block that the holder has already is counted once more, and then takes one
        more `remove_block` to go. None as parent means the start of a prompt.

        Returns:
            False, with nothing changed, when the parent is unknown.
        """
        run, at = self.root, 0
        if parent_hash is not None:
            found = self.by_hash.get(parent_hash)
            if found is None:
                return False
            run, at = found, _position(found, parent_hash) + 1
        done = 0
        while done < len(hashes):
            if at == len(run.hashes):
                child = (run.children or {}).get(hashes[done])
                if child is None:
                    rest = hashes[done:] if done else hashes
                    self.index(self.append(run, holder, rest, tokens, stamp))
                    break
                run, at = child, 0
            num_common = run.common(hashes, done, at)
            if not num_common:
                run = self.split(run, at)
                continue
            if run.held(holder) < at:
                self.split(run, at)
                at = 0
            self._count(run, holder, at, num_common, stamp)
            at, done = at + num_common, done + num_common
        self.enforce(holder)
        return True

    def remove_block(self, holder: int, block: int) -> bool:
        """Count out one block that an engine says it has removed.

        The blocks behind it stay; they cannot be matched until it comes back.
        Blocks that came by `insert` alone are searched for, in O(blocks).

        Returns:
            Whether the holder had the block.
        """
        owner = self.holders.all[holder]
        run = self.by_hash.get(block)
        if run is None and owner.mirrored:
            run = self._search(holder, block)
        if run is None:
            return False
        at, held = _position(run, block), run.held(holder)
        if at >= held:
            return False
        num_extra = owner.extra.get(block, 0)
        if num_extra > 1:
            owner.extra[block] = num_extra - 1
        elif num_extra:
            del owner.extra[block]
            self.num_extras -= 1
        else:
            if at < held - 1:
                run = self.split(run, at + 1)
            self.drop(run, holder, at)
        return True

    def remove_holder(self, holder: int) -> None:
        """Drop all blocks of *holder*: its engine restarted. O(runs of all)."""
        owner = self.holders.all[holder]
        if owner.blocks:
            self.drop_behind(self.root, 0, holder)
        owner.mirrored = False

    def remove_prefix(self, hashes: Sequence[int], holder: int | None = None) -> None:
        """Drop the blocks behind a prefix, of one holder or of all; it stays itself.

        An empty prefix has everything behind it.
        """
        path, depth = self.path(hashes)
        if depth == len(hashes):
            run = path[-1] if path else self.root
            self.drop_behind(run, depth - run.start, holder)

    def truncate(
        self,
        holder: int,
        hashes: Sequence[int],
        keep: int,
        before: float | None = None,
    ) -> None:
        """Drop what *holder* has of a chain from block *keep* on, and behind it.

        Chains that part from this one in front of that block stay.

        Args:
            holder: Whose blocks to drop.
            hashes: The chain.
            keep: Leading blocks that stay.
            before: Drop only what was last used before this stamp.
        """
        path, depth = self.path(hashes)
        for run in path:
            if run.start <= keep < min(run.end, depth):
                self.drop_behind(run, keep - run.start, holder, before)
                return

    def rollback(
        self, holder: int, hashes: Sequence[int], keep: int, stamp: float
    ) -> None:
        """Undo an `insert`: drop its blocks from *keep* on that nobody used since."""
        for run in reversed(self.path(hashes)[0]):
            if run.used.get(holder) == stamp:
                self.drop(run, holder, max(keep - run.start, 0))

    def set_capacity(self, holder: int, num_tokens: int | None) -> None:
        """Bound the tokens of *holder*; beyond, its least recently used blocks go.

        O(runs of all) when the holder had no bound before.
        """
        owner = self.holders.all[holder]
        owner.capacity = num_tokens
        if num_tokens is None:
            owner.recency = None
        elif owner.recency is None:
            owner.recency = self.recency(holder)
        self.enforce(holder)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(everything)."""
        check_integrity(self)

    def _count(
        self, run: Run, holder: int, at: int, num_blocks: int, stamp: float
    ) -> None:
        self.index(run)
        extra = self.holders.all[holder].extra
        held = self.hold(run, holder, at + num_blocks, stamp)
        for block in run.hashes[at : min(held, at + num_blocks)]:
            num_extra = extra.get(block, 0)
            extra[block] = num_extra + 1
            self.num_extras += not num_extra

    def _search(self, holder: int, block: int) -> Run | None:
        for run in self.root.walk():
            if holder in run.used and block in run.hashes:
                return run
        return None


def _position(run: Run, block: int) -> int:
    """Return where *block* is in *run*; O(1) for the last one, else O(n)."""
    if run.hashes[-1] == block:
        return len(run.hashes) - 1
    return run.hashes.index(block)
