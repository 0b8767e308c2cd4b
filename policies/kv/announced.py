"""What engines announce of their blocks: counted, and found by the engines' keys."""

from array import array
from collections.abc import Sequence

from warmroute.policies.kv.holders import NUM_TIERS
from warmroute.policies.kv.run import Run
from warmroute.policies.kv.tree import EXTRA_BYTES, Tree


class Announced(Tree):
    """The tree, fed by the events of engines.

    An engine names a block by a key of its own, which says nothing to others and is
    known until the block is gone. It may announce a block more than once and then
    removes it as often. A holder that announces is never mirrored as well.
    """

    def find(self, holder: int, key: int) -> int | None:
        """Return the hash of the block announced as *key*, in any tier of a backend.

        Args:
            holder: A tier of the backend.
            key: The engine's key of the block.
        """
        for tier in self._tiers(holder):
            run = self.holders.all[tier].known.get(key)
            if run is not None:
                return run.hashes[run.position(tier, key)]
        return None

    def store(
        self,
        holder: int,
        parent_key: int | None,
        keys: Sequence[int],
        hashes: Sequence[int],
        tokens: int,
        stamp: float,
    ) -> bool:
        """Count blocks that an engine says it has stored behind *parent_key*.

        A block that the holder has already is counted once more, and then takes one
        more `remove_block` to go. O(blocks).

        Args:
            holder: The tier of the backend.
            parent_key: Key of the block in front, which may lie in another tier of
                the backend; None at the start of a prompt.
            keys: The engine's key of each block; an ``array("Q")`` becomes the
                index's own.
            hashes: Hash of each block, chained behind that of the parent.
            tokens: Tokens a block.
            stamp: Greater than all before.

        Returns:
            False, with nothing changed, when the parent is unknown.
        """
        run: Run | None = self.root
        at = 0
        if parent_key is not None:
            run, at = self._behind(holder, parent_key)
        if run is None:
            return False
        names = keys if isinstance(keys, array) else array("Q", keys)
        self._lay(run, at, holder, names, hashes, tokens, stamp)
        self.enforce(holder)
        return True

    def _lay(
        self,
        run: Run,
        at: int,
        holder: int,
        keys: "array[int]",
        hashes: Sequence[int],
        tokens: int,
        stamp: float,
    ) -> None:
        """Enter a chain that goes on behind the first *at* blocks of *run*."""
        done = 0
        while done < len(hashes):
            if at == len(run.hashes):
                child = (run.children or {}).get(hashes[done])
                if child is None:
                    self._append(run, holder, keys, hashes, done, tokens, stamp)
                    break
                run, at = child, 0
            num_common = run.common(hashes, done, at)
            if not num_common:
                run = self.split(run, at)
                continue
            if run.held(holder) < at:
                self.split(run, at)
                at = 0
            end = done + num_common
            self._count(run, holder, at, keys[done:end], stamp)
            at, done = at + num_common, end

    def remove_block(self, holder: int, key: int) -> bool:
        """Count out one block that an engine says it has removed.

        The blocks behind it stay; they cannot be matched until it comes back.

        Returns:
            Whether the holder had the block.
        """
        owner = self.holders.all[holder]
        run = owner.known.get(key)
        if run is None:
            return False
        num_extra = owner.extra.get(key, 0)
        if num_extra > 1:
            owner.extra[key] = num_extra - 1
        elif num_extra:
            del owner.extra[key]
            self.num_bytes -= EXTRA_BYTES
        else:
            at = run.position(holder, key)
            if at < run.held(holder) - 1:
                run = self.split(run, at + 1)
            self.drop(run, holder, at)
        return True

    def _behind(self, holder: int, key: int) -> tuple[Run | None, int]:
        """Return the run of a block of the backend, and the place behind it there."""
        for tier in self._tiers(holder):
            run = self.holders.all[tier].known.get(key)
            if run is not None:
                return run, run.position(tier, key) + 1
        return None, 0

    def _tiers(self, holder: int) -> Sequence[int]:
        """Return all tiers of a holder's backend, itself first."""
        first = holder - holder % NUM_TIERS
        return (holder, *range(first, holder), *range(holder + 1, first + NUM_TIERS))

    def _append(
        self,
        parent: Run,
        holder: int,
        keys: "array[int]",
        hashes: Sequence[int],
        done: int,
        tokens: int,
        stamp: float,
    ) -> None:
        if done:
            keys, hashes = keys[done:], hashes[done:]
        run = self.append(parent, holder, hashes, tokens, stamp, 0)
        self.name(run, holder, keys)

    def _count(
        self, run: Run, holder: int, at: int, keys: "array[int]", stamp: float
    ) -> None:
        """Count the blocks of *run* from *at* on, of which the holder has some."""
        end = at + len(keys)
        held = self.hold(run, holder, end, stamp)
        if held < end:
            self.name(run, holder, keys[held - at :] if held > at else keys)
            keys = keys[: held - at]
        extra, names = self.holders.all[holder].extra, (run.keys or {})[holder][at:]
        for key, name in zip(keys, names, strict=False):
            if key != name:  # of several names of a block only the first one counts
                continue
            num_extra = extra.get(key, 0)
            extra[key] = num_extra + 1
            if not num_extra:
                self.num_bytes += EXTRA_BYTES
