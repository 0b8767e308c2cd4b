"""The contract of block eviction, and the bookkeeping that its rules share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Protocol

from warmroute.policies.errors import PolicyError


@dataclass(frozen=True, slots=True)
class BlockFacts:
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
    by their hash. Every method is called on one thread, must not block, and takes
    O(log n) a block at worst, amortised. The memory for blocks that are gone is
    bounded by the capacity.

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
    __slots__ = ("_clock", "_demoted", "_facts", "_held", "capacity")

    def __init__(self, *, capacity: int, clock: Callable[[], float]) -> None:
        if capacity < 1:
            raise PolicyError(
                f"eviction {self.name}: a capacity of {capacity} blocks "
                f"(allowed: 1 or more)"
            )
        self.capacity = capacity
        self._clock = clock
        self._facts: dict[int, BlockFacts] = {}
        self._held: dict[int, bool] = {}  # whether to demote it when it is freed
        self._demoted: dict[int, None] = {}

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} [Blocks: {len(self)} of {self.capacity}, "
            f"{len(self._held)} held, {len(self._demoted)} demoted]>"
        )

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, block: int) -> bool:
        return block in self._facts

    def facts(self, block: int) -> BlockFacts:
        """Return what was said of *block* when it came in."""
        return self._facts[block]

    def inserted(self, block: int, facts: BlockFacts) -> None:
        """Take note that *block* is cached now."""
        if block in self._facts:
            raise PolicyError(
                f"eviction {self.name}: block {block:#x} was inserted twice; "
                f"remove it first, or touch it"
            )
        self._facts[block] = facts
        self._admit(block, facts)

    def touched(self, block: int) -> None:
        """Take note that *block* was used again."""
        if block in self._demoted:
            del self._demoted[block]
            self._restore(block)
        elif block in self._held:
            self._held[block] = False
        self._reward(block, self._facts[block])

    def held(self, block: int) -> None:
        """Take *block* out of the candidates."""
        if block in self._held:
            return
        if block in self._demoted:
            del self._demoted[block]
            self._held[block] = True
            return
        self._withdraw(self._known(block))
        self._held[block] = False

    def freed(self, block: int) -> None:
        """Put *block* among the candidates again."""
        demote = self._held.pop(self._known(block), None)
        if demote:
            self._demoted[block] = None
        elif demote is not None:
            self._restore(block)

    def removed(self, block: int) -> None:
        """Forget a block that is gone for another reason."""
        facts = self._facts.pop(block)
        if block in self._held:
            del self._held[block]
        elif block in self._demoted:
            del self._demoted[block]
        else:
            self._withdraw(block)
        self._forget(block, facts)

    def demoted(self, block: int) -> None:
        """Make *block* the next victim, until it is touched."""
        if block in self._held:
            self._held[block] = True
            return
        if block in self._demoted:
            del self._demoted[block]
        else:
            self._withdraw(self._known(block))
        self._demoted[block] = None

    def evict(self, count: int) -> list[int]:
        """Choose up to *count* victims and forget them."""
        num_victims = min(count, len(self._facts) - len(self._held))
        return [self._evict_one() for _ in range(num_victims)]

    def resident(self) -> list[int]:
        """List the cached blocks in the order of eviction, held ones last."""
        return list(chain(reversed(self._demoted), self._candidates(), self._held))

    def check_integrity(self) -> None:
        """Raise `AssertionError` when the structures contradict each other."""
        listed = self.resident()
        assert len(listed) == len(set(listed)) == len(self._facts)
        assert set(listed) == self._facts.keys()

    def _evict_one(self) -> int:
        if self._demoted:
            block, _ = self._demoted.popitem()
        else:
            block = self._select()
        self._forget(block, self._facts.pop(block))
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
