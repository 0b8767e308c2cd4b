"""The account of what is kept on the host of running sequences.

The scheduler decides what is copied and how long that is kept; the worker, which has
the bytes, is told with each step. So both always say the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

from warmroute.adapters.vllm.plugin.names import COPIED, DROPPED

SLICE_BYTES = 2 << 20
"""Bytes copied at a time, in either direction; a block that is larger is one slice."""


class KeptBlocks:
    """Know which blocks, given back by whom, have a copy, and bound their bytes.

    Attributes:
        block_bytes: Bytes of a block in all layers; 0 while nothing is ever copied.
        cap_bytes: Most bytes of all copies; those that are there stay when it falls.
    """

    __slots__ = ("_added", "_blocks", "_gone", "block_bytes", "cap_bytes")

    def __init__(self) -> None:
        self._blocks: dict[str, set[int]] = {}
        self._added: dict[str, list[int]] = {}
        self._gone: list[str] = []
        self.block_bytes = 0
        self.cap_bytes = 0

    def __repr__(self) -> str:
        return f"<KeptBlocks [Requests: {len(self._blocks)}, bytes: {self.num_bytes}]>"

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies. O(requests that have some)."""
        return sum(map(len, self._blocks.values())) * self.block_bytes

    @property
    def num_free(self) -> int:
        """Count the blocks that may still be copied."""
        free = (self.cap_bytes - self.num_bytes) // self.block_bytes
        return max(0, free) if self.block_bytes else 0

    @property
    def slice_blocks(self) -> int:
        """Blocks that are copied at a time."""
        return max(1, SLICE_BYTES // max(1, self.block_bytes))

    def of(self, name: str) -> list[int]:
        """Return where in its sequence a request has copies, in order."""
        return sorted(self._blocks.get(name, ()))

    def has(self, name: str, at: int) -> bool:
        """Tell whether there is a copy of a block of this request."""
        return at in self._blocks.get(name, ())

    def add(self, name: str, blocks: Sequence[int]) -> None:
        """Have the worker copy these, as far as there is room."""
        some = blocks[: self.num_free]
        if some:
            self._blocks.setdefault(name, set()).update(some)
            self._added.setdefault(name, []).extend(some)

    def remove(self, name: str, blocks: Sequence[int]) -> None:
        """Note that these were put back, and their copies dropped."""
        left = self._blocks[name].difference(blocks)
        if left:
            self._blocks[name] = left
        else:
            del self._blocks[name]

    def drop_ended(self, is_over: Callable[[str], bool]) -> None:
        """Have the worker drop the copies of requests that are over."""
        for name in [one for one in self._blocks if is_over(one)]:
            del self._blocks[name]
            self._gone.append(name)

    def tell(self, output: Any) -> None:
        """Tell the worker with a step's *output* what is new."""
        if self._added:
            setattr(output, COPIED, self._added)
            self._added = {}
        if self._gone:
            setattr(output, DROPPED, self._gone)
            self._gone = []
