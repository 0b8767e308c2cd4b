"""The keys and values of one layer of one sequence in host memory."""

import numpy as np

from warmroute.adapters.embedded.model.arrays import F32, I64
from warmroute.policies.eviction.host_pool import HostPool
from warmroute.policies.eviction.speculation import Speculation


class HostLayer:
    """A host pool with its bytes, and the partial keys to speculate with.

    The partial keys stand in for those that InfiniGen keeps on the device: half of
    the keys is a quarter of the KV.

    Args:
        pool: Says which token lies in which slot.
        speculation: Takes the part of the keys.
        width: Numbers of a head.
        limit: Most tokens held, beyond which the pool evicts; None for no limit.
    """

    __slots__ = (
        "_heads",
        "_keys",
        "_limit",
        "_part",
        "_pool",
        "_speculation",
        "_values",
    )

    def __init__(
        self, pool: HostPool, speculation: Speculation, width: int, limit: int | None
    ) -> None:
        rows, capacity = pool.positions.shape
        self._pool = pool
        self._limit = limit
        self._speculation = speculation
        self._heads = np.arange(rows)
        self._keys: F32 = np.empty((rows, capacity, width), np.float32)
        self._values: F32 = np.empty_like(self._keys)
        self._part: F32 = np.empty((rows, capacity, speculation.part_width), np.float32)

    def __repr__(self) -> str:
        return f"<HostLayer of {self._pool!r}>"

    @property
    def part(self) -> F32:
        """The partial keys of all tokens held: ``[kv_heads, tokens, 2 * pairs]``."""
        return self._part[:, : self._pool.count]

    def load(self, keys: F32, values: F32, scores: F32) -> None:
        """Take the keys and values ``[kv_heads, n, d]`` of a computed prompt.

        Args:
            keys: After RoPE.
            values: The values.
            scores: ``[kv_heads, n]``: attention received, by which a smaller pool
                chooses what it holds.
        """
        self._grow(keys.shape[1])
        kept = self._pool.start(scores)
        heads, count = self._heads[:, None], self._pool.count
        self._keys[:, :count] = keys[heads, kept]
        self._values[:, :count] = values[heads, kept]
        self._part[:, :count] = self._speculation.keys(self._keys[:, :count])

    def store(self, position: int, keys: F32, values: F32) -> None:
        """Take one token ``[kv_heads, d]``, in place of a victim if need be."""
        self._grow(self._pool.count + 1)
        slots = self._pool.admit(position)
        self._keys[self._heads, slots] = keys
        self._values[self._heads, slots] = values
        part = self._speculation.keys(keys[:, None])
        self._part[self._heads, slots] = part[:, 0]

    def fetch(self, slots: I64) -> tuple[F32, F32]:
        """Copy the keys and values ``[kv_heads, n, d]`` of *slots* out."""
        self._pool.fetched(slots)
        index = slots[:, :, None]
        keys: F32 = np.take_along_axis(self._keys, index, axis=1)
        values: F32 = np.take_along_axis(self._values, index, axis=1)
        return keys, values

    def _grow(self, needed: int) -> None:
        """Make room for *needed* tokens, doubling: O(1) a token, amortised."""
        capacity = max(needed, 2 * self._pool.capacity)
        if self._limit is not None:
            capacity = min(capacity, self._limit)
        if needed <= self._pool.capacity or capacity <= self._pool.capacity:
            return
        missing = ((0, 0), (0, capacity - self._pool.capacity), (0, 0))
        self._keys = np.pad(self._keys, missing)
        self._values = np.pad(self._values, missing)
        self._part = np.pad(self._part, missing)
        self._pool.extend(capacity)
