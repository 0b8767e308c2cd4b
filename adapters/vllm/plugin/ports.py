"""What the plugin uses of vLLM's private classes, no more.

`selftest` proves at start that the classes of the running release are like this.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol


class Block(Protocol):
    """One page of the pool (``KVCacheBlock``)."""

    block_id: int
    ref_cnt: int
    is_null: bool

    @property
    def block_hash(self) -> bytes | None:
        """Hash and group of what it holds; None while it is not cached."""
        ...


class FreeQueue(Protocol):
    """The unreferenced pages, the next victim first (``FreeKVCacheBlockQueue``)."""

    @property
    def num_free_blocks(self) -> int:
        """How many there are."""
        ...

    def popleft(self) -> Block:
        """Take the next victim; raises ValueError when there is none."""
        ...

    def popleft_n(self, n: int) -> list[Block]:
        """Take the next *n* victims."""
        ...

    def remove(self, block: Block) -> None:
        """Take out a page that is used again."""
        ...

    def append(self, block: Block) -> None:
        """Put a page at the end."""
        ...

    def append_n(self, blocks: list[Block]) -> None:
        """Put pages at the end."""
        ...

    def prepend_n(self, blocks: list[Block]) -> None:
        """Put pages at the front; the first one becomes the next victim."""
        ...

    def get_all_free_blocks(self) -> list[Block]:
        """List all, the next victim first."""
        ...

    def iter_blocks_after(self, cursor: Block | None) -> Iterator[Block]:
        """Yield those behind *cursor*, or all."""
        ...


class CacheMap(Protocol):
    """Which pages hold which hash (``BlockHashToBlockMap``)."""

    _cache: dict[bytes, object]
    insert: Callable[[bytes, Block], None]
    pop: Callable[[bytes, int], Block | None]


class Elsewhere(Protocol):
    """What keeps blocks that no page holds."""

    def has(self, block_hash: bytes) -> bool:
        """Tell whether it can load a block."""
        ...

    def tell(self, before: "Before | None") -> None:
        """Call *before* with each block that comes or goes; None for no more."""
        ...


class Before(Protocol):
    """Is called before a block comes or goes."""

    def __call__(self, block_hash: bytes, is_on_host: bool | None = None) -> None:
        """Take note; *is_on_host* tells how it was where it is too late to look."""
        ...


class Request(Protocol):
    """A request as the scheduler knows it."""

    request_id: str
    block_hashes: Sequence[bytes]
    all_token_ids: Sequence[int]
    cache_salt: str | None
    lora_request: object | None
    mm_features: Sequence[object]
    prompt_embeds: object | None


class Pool(Protocol):
    """The pages and what is cached on them (``BlockPool``)."""

    num_gpu_blocks: int
    enable_caching: bool
    enable_kv_cache_events: bool
    hash_block_size: int
    blocks: Sequence[Block]
    free_block_queue: FreeQueue
    cached_block_hash_to_block: CacheMap
    cache_full_blocks: Callable[..., None]
    touch: Callable[[Sequence[Block]], None]

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Drop one reference of each."""
        ...

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        """Give out pages, the next victims; raises ValueError where there are less."""
        ...

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Forget what is cached on these pages, and queue the events."""
        ...

    def get_num_free_blocks(self) -> int:
        """Count the unreferenced pages."""
        ...


class Batch(Protocol):
    """A batch of KV events."""


class Publisher(Protocol):
    """Sends batches of KV events (``EventPublisher``)."""

    def publish(self, events: Batch) -> None:
        """Queue a batch; the k-th one gets the sequence number k."""
        ...


class CacheManager(Protocol):
    """The scheduler's side of the cache (``KVCacheManager``)."""

    block_pool: Pool

    def take_events(self) -> list[object]:
        """Take the events that wait to be published."""
        ...


class Scheduler(Protocol):
    """The scheduler of one engine."""

    kv_cache_manager: CacheManager
    kv_event_publisher: Publisher
    connector: object | None


class Workers(Protocol):
    """The processes that run the model (``Executor``)."""

    def collective_rpc(self, method: str, *, args: tuple[object, ...]) -> list[object]:
        """Call a method of every worker."""
        ...


def pages_in(entry: object) -> list[Block]:
    """Read an entry of vLLM's map: nothing, a page, or pages by their number."""
    if entry is None:
        return []
    if isinstance(entry, dict):
        return list(entry.values())
    return [entry]  # type: ignore[list-item]
