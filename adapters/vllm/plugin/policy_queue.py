"""A queue of unreferenced pages whose order a block eviction policy decides.

It stands where vLLM's own queue was, and keeps that one for the pages that the policy
does not rank: those without content, copies, demoted ones, and those that were there
before the policy. They go first, in the order of vLLM. So putting a policy in force
moves nothing, and taking it out moves pages in slices.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from warmroute.adapters.vllm.plugin.contents import Contents, key_of
from warmroute.adapters.vllm.plugin.ports import Block, FreeQueue
from warmroute.policies.eviction.base import BlockEviction, BlockFacts
from warmroute.policies.kv.shards import Shards

logger = logging.getLogger(__name__)


class PolicyQueue:
    """Give out victims as a policy ranks them (`FreeQueue`).

    A policy that raises or names pages that are not its own is given up for vLLM's
    order; the engine does not notice. What it ranked stays here, and goes behind the
    others in no order: to move all of it at once would hold up the engine. O(log n) a
    page, as the policies are.

    Args:
        native: The queue before: vLLM's own, or one whose policy is on its way out.
        policy: Ranks cached pages, by the key of what they hold.
        contents: Tells a policy about blocks.

    Attributes:
        policy: The policy; None once it was given up.
    """

    __slots__ = (
        "_contents",
        "_free",
        "_keys",
        "_num_free",
        "_pages",
        "is_retired",
        "native",
        "policy",
    )

    def __init__(
        self, native: FreeQueue, policy: BlockEviction, contents: Contents
    ) -> None:
        self.native = native
        self.policy: BlockEviction | None = policy
        self._contents = contents
        self.is_retired = False
        self._num_free = 0
        self._free: Shards[int, Block] = Shards()  # evictable, by key
        self._keys: Shards[int, int] = Shards()  # of all that it knows, by page
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
        """Take out a page that is used again."""
        key = self._key(block.block_id)
        if key is None or key not in self._free:
            self.native.remove(block)
            return
        self._take(key)
        self._tell(partial(_use, key))

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
        ranked = self._left() if self.policy is None else self.policy.resident()
        return [
            *self.native.get_all_free_blocks(),
            *(self._free.of(key)[key] for key in ranked if key in self._free),
        ]

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Yield those behind *cursor*, or all. O(n log n)."""
        pages = self.get_all_free_blocks()
        start = 0 if cursor is None else pages.index(cursor) + 1
        return iter(pages[start:])

    def touched(self, blocks: Sequence[Block]) -> None:
        """Take note that pages in use get another user."""
        for block in blocks:
            key = self._key(block.block_id)
            if key is not None and block.ref_cnt:
                self._tell(partial(_touch, key))

    def retire(self) -> None:
        """Rank nothing more; what is ranked stays until it is drained."""
        self.is_retired = True

    def drain(self, count: int) -> bool:
        """Hand up to *count* pages back to the queue before, the next victims first.

        Returns:
            Whether more are left.
        """
        self.native.append_n(self._evict(min(count, self._num_free)))
        return self._num_free > 0

    def _admit(self, block: Block) -> None:
        page = block.block_id
        key = None if block.block_hash is None else key_of(block.block_hash)
        if self._key(page) != key:
            self._forget(page)
        is_ours = key is not None and self._pages.of(key).get(key, page) == page
        if key is None or not is_ours or self.policy is None or self.is_retired:
            self._forget(page)
            self.native.append_n([block])
            return
        self._free.of(key)[key] = block
        self._num_free += 1
        if page in self._keys:
            self._tell(partial(_free, key))
            return
        self._keys.of(page)[page], self._pages.of(key)[key] = key, page
        self._tell(partial(_insert, key, self._facts(key)))

    def _facts(self, key: int) -> BlockFacts:
        content = self._contents.get(key)
        if content is None:
            return BlockFacts(depth=0)
        return BlockFacts(depth=content.depth, parent=content.parent)

    def _forget(self, page: int) -> None:
        key = self._keys.of(page).pop(page, None)
        if key is not None:
            del self._pages.of(key)[key]
            if key in self._free:
                self._take(key)
            self._tell(lambda policy: policy.removed(key))

    def _evict(self, count: int) -> list[Block]:
        victims: list[Block] = []
        if self.policy is not None and count:
            try:
                named = self.policy.evict(count)
                # Those before a failure have been let go, and stay in the list.
                victims.extend(map(self._release, named[:count]))
            except Exception:
                self._give_up("raised")
            else:
                if len(named) != count:
                    self._give_up(f"named {len(named)} victims instead of {count}")
        left = list(islice(self._left(), count - len(victims)))
        victims += map(self._release, left)
        return victims

    def _release(self, key: int) -> Block:
        """Know an evictable page no longer."""
        block = self._take(key)
        page = self._pages.of(key).pop(key)
        del self._keys.of(page)[page]
        return block

    def _take(self, key: int) -> Block:
        block = self._free.of(key).pop(key)
        self._num_free -= 1
        return block

    def _key(self, page: int) -> int | None:
        return self._keys.of(page).get(page)

    def _left(self) -> Iterator[int]:
        """Yield what a policy that was given up has ranked, in no order."""
        return chain.from_iterable(self._free)

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
        name, self.policy = self.policy.name, None
        logger.error(
            "warmroute: eviction policy %s %s; back to vLLM's order",
            name,
            fault,
            exc_info=True,
        )


def _touch(key: int, policy: BlockEviction) -> None:
    policy.touched(key)


def _use(key: int, policy: BlockEviction) -> None:
    policy.touched(key)
    policy.held(key)


def _free(key: int, policy: BlockEviction) -> None:
    policy.freed(key)


def _insert(key: int, facts: BlockFacts, policy: BlockEviction) -> None:
    policy.inserted(key, facts)
