"""What engines announce of their blocks: counted, and found by hash."""

from collections.abc import Sequence

from warmroute.policies.kv.run import Run
from warmroute.policies.kv.tree import EXTRA_BYTES, Tree


class Announced(Tree):
    """The tree, fed by the events of engines.

    An engine may announce a block more than once and then removes it as often.
    """

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
            self.num_bytes -= EXTRA_BYTES
        else:
            if at < held - 1:
                run = self.split(run, at + 1)
            self.drop(run, holder, at)
        return True

    def _count(
        self, run: Run, holder: int, at: int, num_blocks: int, stamp: float
    ) -> None:
        self.index(run)
        extra = self.holders.all[holder].extra
        held = self.hold(run, holder, at + num_blocks, stamp)
        for block in run.hashes[at : min(held, at + num_blocks)]:
            num_extra = extra.get(block, 0)
            extra[block] = num_extra + 1
            if not num_extra:
                self.num_bytes += EXTRA_BYTES

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
