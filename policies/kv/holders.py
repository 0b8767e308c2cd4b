"""Who holds blocks: a tier of a backend, and how much it has."""

from typing import Final

from warmroute.policies.errors import PolicyError
from warmroute.policies.kv.known import Known
from warmroute.policies.kv.recency import Recency

TIERS = ("gpu", "promised", "host", "disk")
"""Where blocks lie, fastest first.

``promised`` are those that requests in flight hold or are about to compute on the GPU
of an engine which announces its blocks: true from the dispatch on, and announced soon.
"""

NUM_TIERS: Final = len(TIERS)
PROMISED: Final = TIERS.index("promised")


class Holder:
    """One tier of one backend.

    Attributes:
        blocks: Blocks it has.
        tokens: Tokens in them.
        known: Run of each announced block, by the engine's own key of the block.
        extra: How often such a block was announced beyond once, by key; sparse.
        capacity: Tokens beyond which its least recently used blocks go, or None.
        recency: Order in which they go; only with a capacity.
    """

    __slots__ = ("blocks", "capacity", "extra", "known", "recency", "tokens")

    def __init__(self) -> None:
        self.blocks = 0
        self.tokens = 0
        self.known = Known()
        self.extra: dict[int, int] = {}
        self.capacity: int | None = None
        self.recency: Recency | None = None

    def __repr__(self) -> str:
        bound = "none" if self.capacity is None else f"{self.capacity} tokens"
        return f"<Holder [Blocks: {self.blocks}, capacity: {bound}]>"


class Holders:
    """All holders by number: four, one a tier, for each slot of a backend.

    A backend that goes leaves its slot to the next one that comes. Numbers are bit
    positions in `Run.full`, so they stay small.

    A backend that is emptied may leave its slot behind as well, and what it had there:
    nobody asks for those numbers until the last block has gone.

    Attributes:
        left: Slots that were left behind with blocks in them.
        gpu_bits: Bits of the GPU holders of all backends.
        gpu_tiers: Leading tiers that count as the GPU: 2 once anything is promised.
        has_tiers: Whether any backend tells of host or disk.
    """

    __slots__ = ("_free", "_slots", "all", "gpu_bits", "gpu_tiers", "has_tiers", "left")

    def __init__(self) -> None:
        self.all: list[Holder] = []
        self.gpu_bits = 0
        self.gpu_tiers = 1
        self.has_tiers = False
        self.left: list[int] = []
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    @property
    def num_slots(self) -> int:
        """Slots in use, and free ones among them."""
        return len(self.all) // NUM_TIERS

    def add(self, name: str, tier: str) -> int:
        """Return the number of *tier* of backend *name*, made when new."""
        if tier not in TIERS:
            raise PolicyError(f"unknown tier {tier!r} (known: {', '.join(TIERS)})")
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = self._take_slot()
        at = TIERS.index(tier)
        if at == PROMISED:
            self.gpu_tiers = 2
        elif at > PROMISED:
            self.has_tiers = True
        return slot * NUM_TIERS + at

    def slot(self, name: str) -> int:
        """Return the slot of backend *name*; KeyError when there is none."""
        return self._slots[name]

    def renew(self, name: str) -> None:
        """Give backend *name* another slot, and leave its own behind."""
        self.left.append(self._slots[name])
        self.gpu_bits &= ~(1 << self._slots[name] * NUM_TIERS)
        self._slots[name] = self._take_slot()

    def remove(self, name: str) -> None:
        """Forget backend *name*, and free its slot once its blocks have gone."""
        slot = self._slots.pop(name)
        self.gpu_bits &= ~(1 << slot * NUM_TIERS)
        self.left.append(slot)
        self.free(slot)

    def free(self, slot: int) -> bool:
        """Give a slot that was left behind to others, if it is empty."""
        first = slot * NUM_TIERS
        if any(self.all[first + at].blocks for at in range(NUM_TIERS)):
            return False
        for at in range(NUM_TIERS):
            self.all[first + at] = Holder()
        self.left.remove(slot)
        self._free.append(slot)
        return True

    def _take_slot(self) -> int:
        if not self._free:
            self._free.append(self.num_slots)
            self.all.extend(Holder() for _ in TIERS)
        slot = self._free.pop()
        self.gpu_bits |= 1 << slot * NUM_TIERS
        return slot
