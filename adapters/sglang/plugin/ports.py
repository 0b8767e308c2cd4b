"""What the plugin uses of SGLang's insides, and nothing else of them."""

from collections.abc import MutableMapping, Sequence
from typing import Any, Protocol


class Key(Protocol):
    """Tokens of one node (``RadixKey``)."""

    token_ids: Sequence[int]
    extra_key: str | None
    cache_salt: str | None

    def __len__(self) -> int:
        """Return the number of tokens."""
        ...


class Data(Protocol):
    """What one node holds of the attention layers (``ComponentData``)."""

    value: object | None
    host_value: object | None
    lock_ref: int


class Node(Protocol):
    """A node of the radix tree: some pages of tokens (``UnifiedTreeNode``)."""

    id: int
    key: Key
    parent: "Node"
    children: MutableMapping[Any, "Node"]
    hash_value: list[str] | None
    component_data: list[Data]
    last_access_time: float


class Recorder(Protocol):
    """Names nodes as KV events do (``KVCacheEventRecorder``)."""

    def _node_event_hash_values(self, node: Node) -> list[str]: ...

    def _namespace_seed(self, node: Node) -> bytes | None: ...


class Core(Protocol):
    """The radix tree in Python (``UnifiedTreeCore``)."""

    root_node: Node
    page_size: int
    kv_events: Recorder
    evictable_device_leaves: set[Node]
    evictable_host_leaves: set[Node]
    eviction_strategy: Any
    components: Sequence[Any]
    enable_session_radix_cache: bool
    _node_arena: MutableMapping[int, Node]

    def inc_full_pin(self, node_id: int) -> None:
        """Lock a node and all in front of it."""
        ...

    def dec_full_pin(self, node_id: int) -> None:
        """Undo `inc_full_pin`."""
        ...

    def _split_node(
        self, key: Key, child: Node, split_len: int
    ) -> tuple[Node, object | None]: ...

    def _evict_host_leaf(
        self, node: Node, tracker: Any, device: Any, host: Any, cache_actions: Any
    ) -> None: ...


class Cache(Protocol):
    """The prefix cache of a scheduler (``UnifiedRadixCache``)."""

    tree_core: Core

    def evict(self, params: object) -> object:
        """Drop what the policy chooses."""
        ...

    def _evict_device_leaf(self, node_id: int, tracker: Any) -> object | None: ...

    def _apply_cache_actions(self, actions: Any) -> None: ...

    def _free_values(self, device: Any, host: Any) -> None: ...
