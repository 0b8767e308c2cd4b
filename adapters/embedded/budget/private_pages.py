"""The pages of one sequence as a small memory of its own."""

from collections.abc import Sequence

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32, I64
from warmroute.adapters.embedded.model.kv_store import KVStore


def page_slots(pages: Sequence[int], block_size: int) -> I64:
    """Return the slots of the store that *pages* are made of, in their order."""
    firsts = np.asarray(pages, np.int64)[:, None] * block_size
    return (firsts + np.arange(block_size)).ravel()


class PrivatePages:
    """Slots 0, 1, 2, ... of a sequence, wherever its pages lie in the store.

    Every KV head may keep another token in a slot.

    Args:
        store: The bytes of all pages.
        pages: Pages that nobody else reads or writes.
    """

    __slots__ = ("_heads", "_slots", "_span", "_store")

    def __init__(self, store: KVStore, pages: Sequence[int]) -> None:
        self._store = store
        self._slots = page_slots(pages, store.block_size)
        self._heads = np.arange(len(store.keys[0]))
        first, last = int(self._slots[0]), int(self._slots[-1])
        is_run = np.array_equal(self._slots, np.arange(first, last + 1))
        self._span = slice(first, last + 1) if is_run else None

    def __repr__(self) -> str:
        where = "scattered" if self._span is None else "one run"
        return f"<PrivatePages of {len(self._slots)} slots, {where}>"

    def fill(self, layer: int, keys: F32, values: F32) -> None:
        """Write ``[kv_heads, n, d]`` into slots 0 to n - 1."""
        slots = self._slots[: keys.shape[1]]
        self._store.keys[layer][:, slots] = keys
        self._store.values[layer][:, slots] = values

    def write(self, layer: int, slots: I64, keys: F32, values: F32) -> None:
        """Write one token ``[kv_heads, d]`` into each head's own slot of *slots*."""
        there = self._slots[slots]
        self._store.keys[layer][self._heads, there] = keys
        self._store.values[layer][self._heads, there] = values

    def read(self, layer: int, count: int) -> tuple[F32, F32]:
        """Return keys and values ``[kv_heads, count, d]`` of the first slots.

        Views where the pages are consecutive, else copies; only to be read.
        """
        keys, values = self._store.keys[layer], self._store.values[layer]
        if self._span is not None:
            span = slice(self._span.start, self._span.start + count)
            return keys[:, span], values[:, span]
        slots = self._slots[:count]
        return keys.take(slots, axis=1), values.take(slots, axis=1)
