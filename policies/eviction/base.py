"""The contract of block eviction, and the bookkeeping that its rules share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.block_order import block_order
from warmroute.policies.kv.shards import LAST, Shards


class BlockFacts(msgspec.Struct, frozen=True, gc=False):
    """What is known of a block when it comes in; some policies score by it."""

    depth: int
    """Blocks in front of it."""
    parent: int | None = None
    """Hash of the block in front of it; None for the first."""
    prompt_blocks: int = 0
    """Blocks of the prompt that brought it; 0 when unknown."""
    turn: int = 1
    """Turn of the conversation that brought it, from 1."""


class BlockEviction(Protocol):
    """Decide which cached blocks are given up first.

    A policy is a class found through the entry-point group ``warmroute.eviction``.
    The pool tells it what becomes of blocks, and asks for victims. Blocks are known
    by their hash, an unsigned 64-bit number. Every method is called on one thread, must
    not block, and takes O(log n) a block at worst, amortised. The memory for blocks
    that are gone is bounded by the capacity. One that remembers many is `Remembering`.

    All but `inserted` want a resident block and raise `KeyError` for others.

    Args:
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds; the only source of time.
    """

    name: ClassVar[str]
    """The name under which it is configured."""

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None: ...

    def inserted(self, block: int, facts: BlockFacts) -> None:
        """Take note that *block* is cached now, and evictable until `held`.

        Raises:
            PolicyError: It is cached already.
        """
        ...

    def touched(self, block: int) -> None:
        """Take note that a request used *block* again; it may be held."""
        ...

    def held(self, block: int) -> None:
        """Take note that *block* is referenced: no victim until `freed`."""
        ...

    def freed(self, block: int) -> None:
        """Take note that *block* is evictable again, with the tail of a chain first.

        No effect on one that is not held.
        """
        ...

    def removed(self, block: int) -> None:
        """Take note that *block* is gone for another reason, held or not."""
        ...

    def demoted(self, block: int) -> None:
        """Make *block* the next victim, until it is touched; the last one first.

        A held one becomes that when it is freed.
        """
        ...

    def evict(self, count: int) -> list[int]:
        """Choose victims and forget them; fewer when fewer are evictable."""
        ...

    def resident(self) -> list[int]:
        """List the cached blocks in the order of eviction, held ones last.

        The order is that of now, as far as the policy can tell. O(n log n).
        """
        ...

    def __len__(self) -> int:
        """Count the cached blocks, held ones included."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A policy that can be taken apart before it is let go.

    What it remembers of blocks that are gone may be millions of entries, which take
    long to free at once.
    """

    def forget_gone(self, count: int) -> bool:
        """Forget up to *count* blocks that are gone; tell whether more are left."""
        ...


class EvictionBase(ABC):
    """Keep the contract for a rule that only ranks evictable blocks.

    Residents, holds and demotions are here; a rule has its own structure, which
    contains the *candidates*: residents that are neither held nor demoted.

    Args:
        capacity: Blocks that the cache can hold.
        clock: Monotonic seconds.

    Raises:
        PolicyError: The capacity is not positive.
    """

    name: ClassVar[str]
    __slots__ = (
        "_clock", "_demoted", "_facts", "_held", "_num_blocks", "_num_held", "capacity",
    )  # fmt: skip

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        if capacity < 1:
            raise PolicyError(
                f"eviction {self.name}: a capacity of {capacity} blocks "
                f"(allowed: 1 or more)"
            )
        self.capacity = capacity
        self._clock = clock
        self._facts: Shards[int, BlockFacts] = Shards()
        self._num_blocks = 0
        # Whether to demote it when it is freed.
        self._held: Shards[int, bool] = Shards()
        self._num_held = 0
        self._demoted = block_order(capacity)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} [Blocks: {len(self)} of {self.capacity}, "
            f"{self._num_held} held, {len(self._demoted)} demoted]>"
        )

    def __len__(self) -> int:
        return self._num_blocks

    def __contains__(self, block: int) -> bool:
        return block in self._facts

    def facts(self, block: int) -> BlockFacts:
        """Return what was said of *block* when it came in."""
        return self._facts.tables[hash(block) & LAST][block]

    def inserted(self, block: int, facts: BlockFacts) -> None:
        """Take note that *block* is cached now."""
        known = self._facts.tables[hash(block) & LAST]
        if block in known:
            raise PolicyError(
                f"eviction {self.name}: block {block:#x} was inserted twice; "
                f"remove it first, or touch it"
            )
        known[block] = facts
        self._num_blocks += 1
        self._admit(block, facts)

    def touched(self, block: int) -> None:
        """Take note that *block* was used again."""
        if self._demoted and self._demoted.discard(block):
            self._restore(block)
        elif self._num_held and block in self._held:
            self._held.tables[hash(block) & LAST][block] = False
        self._reward(block, self._facts.tables[hash(block) & LAST][block])

    def held(self, block: int) -> None:
        """Take *block* out of the candidates."""
        held = self._held.tables[hash(block) & LAST]
        if block in held:
            return
        is_demoted = self._demoted.discard(block)
        if not is_demoted:
            self._withdraw(self._known(block))
        held[block] = is_demoted
        self._num_held += 1

    def freed(self, block: int) -> None:
        """Put *block* among the candidates again."""
        demote = self._held.tables[hash(block) & LAST].pop(self._known(block), None)
        if demote is None:
            return
        self._num_held -= 1
        if demote:
            self._demoted.push(block)
        else:
            self._restore(block)

    def removed(self, block: int) -> None:
        """Forget a block that is gone for another reason."""
        facts = self._facts.tables[hash(block) & LAST].pop(block)
        self._num_blocks -= 1
        if self._held.tables[hash(block) & LAST].pop(block, None) is not None:
            self._num_held -= 1
        elif not self._demoted.discard(block):
            self._withdraw(block)
        self._forget(block, facts)

    def demoted(self, block: int) -> None:
        """Make *block* the next victim, until it is touched."""
        held = self._held.tables[hash(block) & LAST]
        if block in held:
            held[block] = True
        elif not self._demoted.renew(block):
            self._withdraw(self._known(block))
            self._demoted.push(block)

    def evict(self, count: int) -> list[int]:
        """Choose up to *count* victims and forget them."""
        num_victims = min(count, self._num_blocks - self._num_held)
        return [self._evict_one() for _ in range(num_victims)]

    def resident(self) -> list[int]:
        """List the cached blocks in the order of eviction, held ones last."""
        held = chain.from_iterable(self._held)
        return list(chain([*self._demoted][::-1], self._candidates(), held))

    def check_integrity(self) -> None:
        """Raise `AssertionError` when the structures contradict each other."""
        listed = self.resident()
        assert len(listed) == len(set(listed)) == len(self) == len(self._facts)
        assert set(listed) == set(chain.from_iterable(self._facts))
        assert self._num_held == len(self._held)

    def _evict_one(self) -> int:
        block = self._demoted.pop_last() if self._demoted else self._select()
        self._num_blocks -= 1
        self._forget(block, self._facts.tables[hash(block) & LAST].pop(block))
        return block

    def _known(self, block: int) -> int:
        if block not in self._facts:
            raise KeyError(block)
        return block

    @abstractmethod
    def _admit(self, block: int, facts: BlockFacts) -> None:
        """Add a new block to the candidates."""

    @abstractmethod
    def _reward(self, block: int, facts: BlockFacts) -> None:
        """Raise the rank of a block, which may be no candidate."""

    @abstractmethod
    def _withdraw(self, block: int) -> None:
        """Take a block out of the candidates; what is known of it stays."""

    @abstractmethod
    def _restore(self, block: int) -> None:
        """Put a withdrawn block back among the candidates."""

    @abstractmethod
    def _select(self) -> int:
        """Take the lowest out of the candidates; there is at least one."""

    @abstractmethod
    def _candidates(self) -> Iterable[int]:
        """Yield the candidates, lowest first."""

    def _forget(self, block: int, facts: BlockFacts) -> None:  # noqa: B027
        """Make a ghost of a block that is no candidate any more, or do nothing."""
