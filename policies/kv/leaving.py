"""What backends leave behind: at once out of sight, and freed in slices."""

from warmroute.policies.kv.announced import Announced
from warmroute.policies.kv.holders import NUM_TIERS, PROMISED, Holder
from warmroute.policies.kv.run import Run


class Leaving(Announced):
    """The tree, and the blocks of backends that have none any more.

    To free a block takes half a microsecond, so that a cache of millions cannot be
    wiped at once. Its backend gets other numbers instead, under which it has nothing,
    and may fill anew; what lies under the old ones is found by nobody, and goes little
    by little. Until then it counts in `num_blocks` and `num_bytes`, and where room is
    short it goes first, being the oldest.

    Attributes:
        num_at_once: Blocks that are dropped at once; more are left to `sweep`.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.num_at_once = 2048

    @property
    def has_left(self) -> bool:
        """Tell whether there is something to `sweep`."""
        return bool(self.holders.left)

    def remove_holder(self, holder: int) -> None:
        """Drop all blocks of *holder*. O(its runs), or of all runs without an order."""
        owner = self.holders.all[holder]
        while owner.blocks:
            self._drop_some(holder, owner, owner.blocks)
        if owner.capacity is None:
            owner.recency = None

    def remove_backend(self, name: str) -> None:
        """Forget backend *name*; its holders' numbers are others' when it has gone."""
        first = self.holders.slot(name) * NUM_TIERS
        holders = self.holders.all[first : first + NUM_TIERS]
        if sum(owner.blocks for owner in holders) <= self.num_at_once:
            for holder in range(first, first + NUM_TIERS):
                self.remove_holder(holder)
        self.holders.remove(name)

    def clear_backend(self, name: str) -> bool:
        """Drop all that *name* has; what requests in flight promise stays.

        O(1) for what is announced; O(runs) for what is promised, or mirrored under it.

        Returns:
            Whether its holders have other numbers now, see `add_holder`.
        """
        first = self.holders.slot(name) * NUM_TIERS
        cleared = [first + at for at in range(NUM_TIERS) if at != PROMISED]
        if sum(self.blocks(holder) for holder in cleared) <= self.num_at_once:
            for holder in cleared:
                self.remove_holder(holder)
            return False
        self.holders.renew(name)
        promised = self.holders.slot(name) * NUM_TIERS + PROMISED
        self._move(first + PROMISED, promised)
        return True

    def sweep(self, num_blocks: int) -> bool:
        """Free *num_blocks* of what was left behind; tell whether more is left."""
        left = self.holders.left
        while left and num_blocks > 0:
            holder = self._next_of(left[-1])
            if holder is None:
                self.holders.free(left[-1])
            else:
                owner = self.holders.all[holder]
                num_blocks -= self._drop_some(holder, owner, num_blocks)
        return bool(left)

    def blocks(self, holder: int) -> int:
        """Count the blocks that *holder* has."""
        return self.holders.all[holder].blocks

    def _next_of(self, slot: int) -> int | None:
        """Return a holder of a slot that has blocks."""
        for holder in range(slot * NUM_TIERS, (slot + 1) * NUM_TIERS):
            if self.blocks(holder):
                return holder
        return None

    def _drop_some(self, holder: int, owner: Holder, most: int) -> int:
        """Drop up to *most* blocks of one run; return how many."""
        run = owner.known.any_run()
        if run is None:
            if owner.recency is None:
                owner.recency = self.recency(holder)
            run = owner.recency.oldest()
        assert run is not None, "a holder has blocks that are nowhere"
        held = run.held(holder)
        keep = max(0, held - most)
        self.drop(run, holder, keep)
        return held - keep

    def _move(self, old: int, new: int) -> None:
        """Give all that *old* has to *new*, with its stamps; neither is announced."""
        owner, other = self.holders.all[old], self.holders.all[new]
        other.capacity, owner.capacity = owner.capacity, None
        if other.capacity is not None:
            other.recency = self.recency(new)
        if not owner.blocks:
            return
        order = owner.recency or self.recency(old)
        for run in order.runs():
            if old in run.used:
                self._hand_over(run, old, new)

    def _hand_over(self, run: Run, old: int, new: int) -> None:
        last = run.last
        self.hold(run, new, run.held(old), run.used[old])
        run.last = last
        self.drop(run, old, 0)
