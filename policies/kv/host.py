"""The host tier: which offloaded blocks lie in host memory, and where."""

from heapq import heappop, heappush

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.eviction.lru import Lru
from warmroute.policies.kv.residents import Resident, Residents


class HostTier:
    """Give each block kept in host memory an id, and evict when that is full.

    Ids count from 0 and are no pages: both tiers may have the same block, each in a
    place of its own. The tier moves no bytes; whoever calls `store` copies them to
    the id returned, over those of the block that went for it. O(log n) at worst.

    Args:
        capacity_blocks: Blocks that fit.
        eviction: Decides which block goes; least recently used by default.

    Raises:
        PolicyError: No block fits.
    """

    __slots__ = ("_blank", "_eviction", "_residents", "capacity_blocks")

    def __init__(
        self, capacity_blocks: int, eviction: BlockEviction | None = None
    ) -> None:
        if capacity_blocks < 1:
            raise PolicyError(
                f"host tier: {capacity_blocks} blocks (allowed: 1 or more; "
                f"leave the tier out to have none)"
            )
        lru = Lru(capacity=capacity_blocks, clock=lambda: 0.0)
        self.capacity_blocks = capacity_blocks
        self._eviction: BlockEviction = lru if eviction is None else eviction
        self._residents = Residents()
        self._blank = list(range(capacity_blocks))

    def __repr__(self) -> str:
        return f"<HostTier [Blocks: {len(self)} of {self.capacity_blocks}]>"

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, block_hash: int) -> bool:
        return block_hash in self._residents.pages

    def store(
        self, block_hash: int, parent_hash: int | None = None, depth: int = 0
    ) -> int:
        """Return the id to copy a block to; one that is there keeps its id, as used.

        Args:
            block_hash: Chained hash of the content.
            parent_hash: Hash of the block in front; None for the first.
            depth: Blocks in front of it.

        Raises:
            PolicyError: The tier is full, and the eviction policy gives up nothing
                or what is not there; the block was not stored.
        """
        if block_hash in self:
            self._eviction.touched(block_hash)
            return self._residents.pages[block_hash]
        if not self._blank:
            self._make_room()
        host_id = heappop(self._blank)
        facts = BlockFacts(depth, parent_hash)
        self._residents.add(block_hash, host_id, facts)
        self._eviction.inserted(block_hash, facts)
        return host_id

    def find(self, block_hash: int) -> int | None:
        """Return the id of a block, or None; changes nothing."""
        return self._residents.pages.get(block_hash)

    def touch(self, block_hash: int) -> None:
        """Count a use of a block; of a chain, touch the tail first.

        So the tail is evicted first, without which the head is of use still.

        Raises:
            KeyError: It is not there.
        """
        self._eviction.touched(block_hash)

    def drop(self, block_hash: int) -> bool:
        """Forget a block; tells whether it was there."""
        if block_hash not in self:
            return False
        self._eviction.removed(block_hash)
        self._forget(block_hash)
        return True

    def snapshot(self) -> list[Resident]:
        """List the blocks, parents first, with the id as page and no references."""
        residents = self._residents
        return [
            residents.describe(block_hash, refs=0)
            for block_hash in residents.by_depth(residents.pages)
        ]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every invariant holds. O(capacity)."""
        self._residents.check_integrity()
        used, blank = self._residents.hashes.keys(), set(self._blank)
        assert len(blank) == len(self._blank), "an id is blank twice"
        assert not used & blank, "a blank id is in use"
        assert used | blank == set(range(self.capacity_blocks)), "an id was lost"
        listed = self._eviction.resident()
        assert len(listed) == len(self._eviction) == len(self), "policy miscounts"
        assert set(listed) == self._residents.pages.keys(), "policy has others"

    def _forget(self, block_hash: int) -> None:
        heappush(self._blank, self._residents.remove(block_hash))

    def _make_room(self) -> None:
        victims = self._eviction.evict(1)
        if len(victims) != 1 or victims[0] not in self:
            raise PolicyError(
                f"eviction {self._eviction.name}: gave up "
                f"{[hex(victim) for victim in victims]} of {len(self)} blocks of the "
                f"full host tier (allowed: one that is there)"
            )
        self._forget(victims[0])
