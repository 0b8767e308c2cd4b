"""A queue of unreferenced pages whose order a block eviction policy decides.

It stands where vLLM's own queue was, and keeps that one for the pages that the policy
does not rank: those without content, copies, demoted ones, and those that were there
before the policy. They go first, in the order of vLLM. So putting a policy in force
moves nothing, and taking it out moves pages in slices.
"""

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import methodcaller
from typing import Final

from warmroute.adapters.vllm.plugin.contents import Contents, key_of
from warmroute.adapters.vllm.plugin.ports import Block, FreeQueue
from warmroute.policies.eviction.base import BlockEviction, BlockFacts, Remembering
from warmroute.policies.kv.shards import Shards, dismantle

logger = logging.getLogger(__name__)

_UNKNOWN: Final = 0
_USED: Final = 1
_FREE: Final = 2


class PolicyQueue:
    """Give out victims as a policy ranks them (`FreeQueue`).

    A policy that raises or names pages that are not its own is given up for vLLM's
    order; the engine does not notice. What it ranked stays here, and goes behind the
    others in no order: to move all of it at once would hold up the engine. O(log n) a
    page, as the policies are. What is noted of a page lies in arrays: a table of pages
    would be gone through by the garbage collector.

    Args:
        native: The queue before: vLLM's own, or one whose policy is on its way out.
        policy: Ranks cached pages, by the key of what they hold.
        contents: Tells a policy about blocks.
        blocks: All pages of the pool, by their numbers.

    Attributes:
        policy: The policy; None once it was given up.
    """

    __slots__ = (
        "_blocks",
        "_contents",
        "_failed",
        "_keys",
        "_num_free",
        "_pages",
        "_states",
        "is_retired",
        "native",
        "policy",
    )

    def __init__(
        self,
        native: FreeQueue,
        policy: BlockEviction,
        contents: Contents,
        blocks: Sequence[Block],
    ) -> None:
        self.native = native
        self.policy: BlockEviction | None = policy
        self._contents = contents
        self._blocks = blocks
        self._failed: BlockEviction | None = None  # to free it at once takes long
        self.is_retired = False
        self._num_free = 0
        self._states = bytearray(len(blocks))  # free ones may be evicted
        self._keys = array("Q", [0]) * len(blocks)  # of all pages that it knows
        self._pages: Shards[int, int] = Shards()  # the other way round

    def __repr__(self) -> str:
        return (
            f"<PolicyQueue [Pages: {self._num_free} ranked by {self.policy!r}, "
            f"{self.native.num_free_blocks} before]>"
        )

    @property
    def num_free_blocks(self) -> int:
        """How many pages nobody uses."""
        return self.native.num_free_blocks + self._num_free

    def popleft(self) -> Block:
        """Take the next victim."""
        if not self.num_free_blocks:
            raise ValueError("no free pages")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Block]:
        """Take the next *n* victims."""
        assert self.num_free_blocks >= n, "more pages are wanted than are free"
        victims = self.native.popleft_n(min(n, self.native.num_free_blocks))
        if len(victims) < n:
            victims += self._evict(n - len(victims))
        return victims

    def remove(self, block: Block) -> None:
        """Take out a page: it is used again (see `touched`), dropped or demoted."""
        page = block.block_id
        if self._states[page] != _FREE:
            self.native.remove(block)
            return
        self._take(page)
        self._tell(methodcaller("held", self._keys[page]))

    def append(self, block: Block) -> None:
        """Put a page where the policy wants it."""
        self.append_n([block])

    def append_n(self, blocks: list[Block]) -> None:
        """Put pages where the policy wants them, the least wanted one first."""
        for block in blocks:
            self._admit(block)

    def prepend_n(self, blocks: list[Block]) -> None:
        """Put pages at the front, whatever the policy thinks of them."""
        for block in blocks:
            self._forget(block.block_id)
        self.native.prepend_n(blocks)

    def get_all_free_blocks(self) -> list[Block]:
        """List all, the next victim first."""
        free: Iterable[int] = self._left()
        if self.policy is not None:
            ranked = self.policy.resident()
            known = (self._pages.of(key).get(key) for key in ranked)
            free = (one for one in known if one and self._states[one] == _FREE)
        return [
            *self.native.get_all_free_blocks(),
            *(self._blocks[page] for page in free),
        ]

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Yield those behind *cursor*, or all. O(n log n)."""
        pages = self.get_all_free_blocks()
        start = 0 if cursor is None else pages.index(cursor) + 1
        return iter(pages[start:])

    def touched(self, blocks: Sequence[Block]) -> None:
        """Take note that pages get a user, free ones or not; before `remove`."""
        for block in blocks:
            page = block.block_id
            if self._states[page] != _UNKNOWN:
                self._tell(methodcaller("touched", self._keys[page]))

    def retire(self) -> None:
        """Rank nothing more; what is ranked stays until it is drained."""
        self.is_retired = True

    def drain(self, count: int) -> bool:
        """Hand the next victim back to the queue before.

        One at a time, because taking it out of the heaps of a policy may take a
        millisecond. When none is left, up to *count* pages in use are known no
        longer, and then as many that are gone: all at once would take long.

        Returns:
            Whether more is left.
        """
        if self._num_free:
            self.native.append_n(self._evict(1))
            return True
        used = list(islice(self._in_state(_USED), count))
        for page in used:
            self._forget(page)
        if used:
            return True
        return self._forget_gone(count)

    def dismantle(self) -> Iterator[None]:
        """Free what is left of it and of its policy, in pieces; it is used no more."""
        for part in (self.policy, self._failed, self._pages, self._keys):
            yield from dismantle(part)

    def _forget_gone(self, count: int) -> bool:
        policy = self.policy
        try:
            return isinstance(policy, Remembering) and policy.forget_gone(count)
        except Exception:
            self._give_up("raised")
            return False

    def _admit(self, block: Block) -> None:
        page = block.block_id
        key = None if block.block_hash is None else key_of(block.block_hash)
        if key is None or self._keys[page] != key:
            self._forget(page)
        is_ours = key is not None and self._is_only(page, key)
        if key is None or not is_ours or self.policy is None or self.is_retired:
            self._forget(page)
            self.native.append_n([block])
            return
        is_known = self._states[page] != _UNKNOWN
        self._states[page] = _FREE
        self._num_free += 1
        if is_known:
            self._tell(methodcaller("freed", key))
            return
        self._keys[page], self._pages.of(key)[key] = key, page
        self._tell(methodcaller("inserted", key, self._facts(key)))

    def _is_only(self, page: int, key: int) -> bool:
        """Tell whether no other page has *key*; let go of one that lost it."""
        other = self._pages.of(key).get(key, page)
        if other == page:
            return True
        if self._blocks[other].block_hash is not None:
            return False
        # A reset of vLLM's cache tells nobody, and leaves all pages where they are.
        if self._states[other] == _FREE:
            self.prepend_n([self._blocks[other]])
        else:
            self._forget(other)
        return True

    def _facts(self, key: int) -> BlockFacts:
        content = self._contents.get(key)
        if content is None:
            return BlockFacts(depth=0)
        return BlockFacts(depth=content.depth, parent=content.parent)

    def _forget(self, page: int) -> None:
        state, key = self._states[page], self._keys[page]
        if state == _UNKNOWN:
            return
        if state == _FREE:
            self._take(page)
        self._states[page] = _UNKNOWN
        del self._pages.of(key)[key]
        self._tell(methodcaller("removed", key))

    def _evict(self, count: int) -> list[Block]:
        victims: list[Block] = []
        if self.policy is not None and count:
            try:
                named = self.policy.evict(count)
                # Those before a failure have been let go, and stay in the list.
                pages = (self._pages.of(key)[key] for key in named[:count])
                victims.extend(map(self._release, pages))
            except Exception:
                self._give_up("raised")
            else:
                if len(named) != count:
                    self._give_up(f"named {len(named)} victims instead of {count}")
        left = list(islice(self._left(), count - len(victims)))
        victims += map(self._release, left)
        return victims

    def _release(self, page: int) -> Block:
        """Know an evictable page no longer."""
        self._take(page)
        self._states[page] = _UNKNOWN
        key = self._keys[page]
        del self._pages.of(key)[key]
        return self._blocks[page]

    def _take(self, page: int) -> None:
        if self._states[page] != _FREE:
            raise KeyError(page)
        self._states[page] = _USED
        self._num_free -= 1

    def _left(self) -> Iterator[int]:
        """Yield the pages that a policy that was given up has ranked, in no order."""
        return self._in_state(_FREE)

    def _in_state(self, state: int) -> Iterator[int]:
        page = self._states.find(state)
        while page >= 0:
            yield page
            page = self._states.find(state, page + 1)

    def _tell(self, say: Callable[[BlockEviction], object]) -> None:
        if self.policy is None:
            return
        try:
            say(self.policy)
        except Exception:
            self._give_up("raised")

    def _give_up(self, fault: str) -> None:
        if self.policy is None:
            return
        name, self.policy, self._failed = self.policy.name, None, self.policy
        logger.error(
            "warmroute: eviction policy %s %s; back to vLLM's order",
            name,
            fault,
            exc_info=True,
        )
