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
  `remove_block` count, for engines that announce the same block more than once and
  name it by a key of their own. A holder is fed by one of them.
- `num_bytes` never exceeds ``max_bytes`` when a call returns: the least recently
  used leaves of all holders make room, deepest blocks first.
"""

from collections.abc import Sequence

from warmroute.policies.kv.integrity import check_integrity
from warmroute.policies.kv.leaving import Leaving
from warmroute.policies.kv.match import Match
from warmroute.policies.kv.run import Run


class PrefixIndex(Leaving):
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

    def tokens(self, holder: int) -> int:
        """Count the tokens in the blocks that *holder* has."""
        return self.holders.all[holder].tokens

    def match(self, hashes: Sequence[int]) -> Match:
        """Return the leading blocks of a chain that each backend has, by tier.

        Changes nothing. O(runs on the path + backends).
        """
        path, depth = self.path(hashes)
        return Match(path, depth, self.holders)

    def reach(self, holder: int, path: Sequence[Run], depth: int) -> int:
        """Count the leading blocks of a chain that *holder* has by itself.

        Args:
            holder: Whose blocks.
            path: What `path` found.
            depth: The blocks that it found.
        """
        num_blocks = 0
        for run in path:
            held = run.held(holder)
            num_blocks = run.start + held if held else num_blocks
            if held < len(run.hashes):
                break
        return min(num_blocks, depth)

    def last_used(self, holder: int, path: Sequence[Run]) -> float | None:
        """Return when the deepest run of *path* that *holder* has was last used."""
        stamp = None
        for run in path:
            if holder not in run.used:
                break
            stamp = run.used[holder]
        return stamp

    def insert(
        self,
        holder: int,
        hashes: Sequence[int],
        tokens: int,
        stamp: float,
        path: list[Run] | None = None,
        depth: int = 0,
    ) -> int:
        """Add a chain from its first block on, and mark all of it as used.

        O(runs on the path) for what is there already, and O(1) a new block. What
        does not fit in the holder's capacity or in the cap goes from the tail.

        Args:
            holder: Who was sent these blocks.
            hashes: Block hashes from the first block of the prompt on.
            tokens: Tokens a block; runs that exist keep theirs.
            stamp: Greater than all before.
            path: What `path` found, under the `version` of now, to save the search;
                the chain's last run is the last one in it afterwards.
            depth: The blocks that it found.

        Returns:
            The leading blocks that the holder had before.
        """
        if path is None:
            path, depth = self.path(hashes)
        last = path[-1] if path else self.root
        has_grown = last.end > depth
        if has_grown:
            last = path[-1] = self.split(last, depth - last.start)
        num_held = self._use(path, holder, stamp)
        if depth < len(hashes):
            rest = hashes[depth:] if depth else hashes
            path.append(self.append(last, holder, rest, tokens, stamp, 1))
        if has_grown or num_held < len(hashes):
            self.enforce(holder)
        return num_held

    def _use(self, path: list[Run], holder: int, stamp: float) -> int:
        """Let *holder* have all of *path*; return the leading blocks it had before."""
        num_held, bit = 0, 1 << holder
        for run in path:
            # Most often the holder has the whole run, which takes no call.
            if run.full & bit:
                held = len(run.hashes)
                run.used[holder] = run.last = stamp
            else:
                held = self.hold(run, holder, len(run.hashes), stamp)
            if num_held == run.start:
                num_held += held
            run.hits += 1
        return num_held

    def touch(
        self,
        holder: int,
        hashes: Sequence[int],
        stamp: float,
        last: Run | None = None,
    ) -> None:
        """Mark the blocks of a chain that *holder* has as used. O(runs).

        Args:
            holder: Whose blocks.
            hashes: The chain.
            stamp: Greater than all before.
            last: The run that the chain once ended in; saves the search if it
                still ends in the same block, which names the whole chain.
        """
        if (
            last is not None
            and last.parent is not None
            and last.hashes[-1] == hashes[-1]
        ):
            above: Run | None = last
            while above is not None:
                if holder in above.used:
                    above.used[holder] = above.last = stamp
                above = above.parent
            return
        path, depth = self.path(hashes)
        for run in path:
            if holder in run.used and run.end <= depth:
                run.used[holder] = run.last = stamp

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
            if keep < run.start + len(run.hashes):
                if keep < depth:
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

        O(runs of all) when the holder had blocks and no bound before.
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
