"""A fake of SGLang's radix tree, as far as the plugin uses it."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from warmroute.adapters.sglang.plugin.tree import Tree

PAGE = 2


class FakeKey:
    def __init__(self, tokens: Sequence[int], salt: str | None = None) -> None:
        self.token_ids = list(tokens)
        self.extra_key: str | None = None
        self.cache_salt = salt

    def __len__(self) -> int:
        return len(self.token_ids)


class FakeData:
    def __init__(self) -> None:
        self.value: object | None = object()
        self.host_value: object | None = None
        self.lock_ref = 0


class FakeNode:
    def __init__(self, at: int, key: FakeKey, parent: "FakeNode | None") -> None:
        self.id = at
        self.key = key
        self.parent: Any = parent
        self.children: dict[Any, FakeNode] = {}
        self.hash_value: list[str] | None = None
        self.component_data = [FakeData()]
        self.last_access_time = float(at)


class FakeComponent:
    session_ref_eviction_strategy: object | None = "bound"


class FakeRecorder:
    """Name pages by hashes of all that is in front of them."""

    def _node_event_hash_values(self, node: FakeNode) -> list[str]:
        front: list[int] = []
        one = node.parent
        while one is not None:
            front = one.key.token_ids + front
            one = one.parent
        tokens = node.key.token_ids
        return [
            digest(front + tokens[: end + PAGE], node.key.cache_salt)
            for end in range(0, len(tokens), PAGE)
        ]

    def _namespace_seed(self, node: FakeNode) -> bytes | None:
        return None


class FakeCore:
    """A tree that splits, locks and drops as SGLang's does."""

    page_size = PAGE
    enable_session_radix_cache = False
    is_eagle = False

    def __init__(self) -> None:
        self.kv_events: Any = FakeRecorder()
        self.eviction_strategy: Any = None
        self.components = [FakeComponent()]
        self.component_types = ("full",)
        self._next = 0
        self._node_arena: Any = {}
        self.root_node: Any = self._new(FakeKey([]), None)

    def _new(self, key: FakeKey, parent: FakeNode | None) -> FakeNode:
        node = FakeNode(self._next, key, parent)
        self._next += 1
        self._node_arena[node.id] = node
        return node

    @property
    def evictable_device_leaves(self) -> Any:
        return {
            node
            for node in self._nodes()
            if node.component_data[0].value is not None
            and not node.component_data[0].lock_ref
            and not any(
                child.component_data[0].value for child in node.children.values()
            )
        }

    @property
    def evictable_host_leaves(self) -> Any:
        return {
            node
            for node in self._nodes()
            if node.component_data[0].value is None and not node.children
        }

    def _nodes(self) -> Iterator[FakeNode]:
        return (one for one in self._node_arena.values() if one is not self.root_node)

    def inc_full_pin(self, node_id: int) -> None:
        self._lock(node_id, 1)

    def dec_full_pin(self, node_id: int) -> None:
        self._lock(node_id, -1)

    def _lock(self, node_id: int, by: int) -> None:
        node = self._node_arena[node_id]
        while node is not self.root_node:
            node.component_data[0].lock_ref += by
            assert node.component_data[0].lock_ref >= 0
            node = node.parent

    def _split_node(self, key: Any, child: Any, split_len: int) -> tuple[Any, None]:
        front = self._new(FakeKey(key.token_ids[:split_len]), child.parent)
        front.key.cache_salt = key.cache_salt
        del child.parent.children[_child_key(child.key)]
        child.parent.children[_child_key(front.key)] = front
        child.key = FakeKey(key.token_ids[split_len:], key.cache_salt)
        child.parent = front
        front.children[_child_key(child.key)] = child
        for name in ("lock_ref", "value", "host_value"):
            kept = getattr(child.component_data[0], name)
            setattr(front.component_data[0], name, kept)
        return front, None

    def insert(self, tokens: Sequence[int], salt: str | None = None) -> None:
        """Cache the whole pages of a prompt, as a request that ends does."""
        left = list(tokens)[: len(tokens) // PAGE * PAGE]
        node = self.root_node
        while left:
            child = node.children.get(_child_key(FakeKey(left, salt)))
            if child is None:
                node.children[_child_key(FakeKey(left, salt))] = self._new(
                    FakeKey(left, salt), node
                )
                return
            same = _common(child.key.token_ids, left)
            if same < len(child.key):
                child, _ = self._split_node(child.key, child, same)
            node, left = child, left[same:]

    def drop(self, node: FakeNode) -> None:
        """Take a leaf out of the tree."""
        del node.parent.children[_child_key(node.key)]
        del self._node_arena[node.id]

    def _evict_host_leaf(
        self, node: Any, tracker: Any, device: Any, host: Any, cache_actions: Any
    ) -> None:
        assert node in self.evictable_host_leaves
        self.drop(node)


class FakeCache:
    """The cache around the tree."""

    def __init__(self, core: FakeCore) -> None:
        self.tree_core: Any = core

    def evict(self, params: object) -> object:
        raise NotImplementedError

    def _evict_device_leaf(self, node_id: int, tracker: Any) -> object | None:
        node = self.tree_core._node_arena[node_id]
        assert node in self.tree_core.evictable_device_leaves
        if node.component_data[0].host_value is None:
            self.tree_core.drop(node)
        else:
            node.component_data[0].value = None
        return None

    def _apply_cache_actions(self, actions: Any) -> None:
        assert not actions

    def _free_values(self, device: Any, host: Any) -> None:
        assert not device
        assert not host


def fake_tree() -> tuple[Tree, FakeCore]:
    """Return an empty tree, as the plugin sees it and as SGLang does."""
    core = FakeCore()
    return Tree(FakeCache(core), lambda block_hash, seed: block_hash), core


def digest(tokens: Sequence[int], salt: str | None = None) -> str:
    """Return what the fake names the last page of tokens."""
    return hashlib.sha256(repr((list(tokens), salt)).encode()).hexdigest()


def keys_of(tokens: Sequence[int], salt: str | None = None) -> list[int]:
    """Return the keys of the whole pages of a prompt."""
    ends = range(PAGE, len(tokens) + 1, PAGE)
    return [int(digest(tokens[:end], salt)[:16], 16) for end in ends]


def _child_key(key: FakeKey) -> tuple[object, ...]:
    return (key.cache_salt, *key.token_ids[:PAGE])


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    same = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        same += 1
    return same // PAGE * PAGE
