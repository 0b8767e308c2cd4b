"""The account of what is kept on the host of running sequences.

The scheduler decides what is copied and how long that is kept; the worker, which has
the bytes, is told with each step. So both always say the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

from warmroute.adapters.vllm.plugin.names import COPIED, DROPPED
from warmroute.adapters.vllm.plugin.slices import num_whole


class KeptBlocks:
    """Know which blocks, given back by whom, have a copy, and bound their bytes.

    Attributes:
        block_bytes: Bytes of a block in all layers; 0 while nothing is ever copied.
        parts: In how many parts a block is copied, one at a time.
        cap_bytes: Most bytes of all copies; those that are there stay when it falls.
    """

    __slots__ = (
        "_added",
        "_begun",
        "_blocks",
        "_gone",
        "block_bytes",
        "cap_bytes",
        "parts",
    )

    def __init__(self) -> None:
        self._blocks: dict[str, set[int]] = {}
        self._begun: dict[str, tuple[int, int]] = {}
        self._added: dict[str, list[tuple[int, int]]] = {}
        self._gone: list[str] = []
        self.block_bytes = 0
        self.parts = 1
        self.cap_bytes = 0

    def __repr__(self) -> str:
        return f"<KeptBlocks [Requests: {len(self._blocks)}, bytes: {self.num_bytes}]>"

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies, those begun included. O(requests that have some)."""
        num_blocks = sum(map(len, self._blocks.values())) + len(self._begun)
        return num_blocks * self.block_bytes

    @property
    def slice_blocks(self) -> int:
        """Blocks that are copied at a time."""
        return num_whole(self.block_bytes)

    def may_copy(self, name: str) -> bool:
        """Tell whether there is room for one more block of this request."""
        return name in self._begun or self._num_free > 0

    def begun(self, name: str) -> int | None:
        """Return which block of a request is copied in part."""
        begun = self._begun.get(name)
        return None if begun is None else begun[0]

    def of(self, name: str) -> list[int]:
        """Return where in its sequence a request has copies, in order."""
        return sorted(self._blocks.get(name, ()))

    def has(self, name: str, at: int) -> bool:
        """Tell whether there is a copy of a block of this request."""
        return at in self._blocks.get(name, ())

    def add(self, name: str, blocks: Sequence[int]) -> bool:
        """Have the worker copy these, as far as there is room.

        Where a block takes several slices, there is one, and a part of it is copied.

        Returns:
            Whether nothing is left to copy, so that they may go.
        """
        if self.parts > 1:
            return self._add_part(name, blocks[0])
        some = blocks[: self._num_free]
        if some:
            self._blocks.setdefault(name, set()).update(some)
            self._added.setdefault(name, []).extend((at, 0) for at in some)
        return True

    def remove(self, name: str, blocks: Sequence[int]) -> None:
        """Note that these were put back, and their copies dropped."""
        left = self._blocks[name].difference(blocks)
        if left:
            self._blocks[name] = left
        else:
            del self._blocks[name]

    def drop_ended(self, is_over: Callable[[str], bool]) -> None:
        """Have the worker drop the copies of requests that are over."""
        names = self._blocks.keys() | self._begun.keys()
        for name in [one for one in names if is_over(one)]:
            self._blocks.pop(name, None)
            self._begun.pop(name, None)
            self._gone.append(name)

    def tell(self, output: Any) -> None:
        """Tell the worker with a step's *output* what is new."""
        if self._added:
            setattr(output, COPIED, self._added)
            self._added = {}
        if self._gone:
            setattr(output, DROPPED, self._gone)
            self._gone = []

    @property
    def _num_free(self) -> int:
        free = (self.cap_bytes - self.num_bytes) // self.block_bytes
        return max(0, free) if self.block_bytes else 0

    def _add_part(self, name: str, at: int) -> bool:
        _, part = self._begun.pop(name, (at, 0))
        self._added.setdefault(name, []).append((at, part))
        if part + 1 < self.parts:
            self._begun[name] = (at, part + 1)
            return False
        self._blocks.setdefault(name, set()).add(at)
        return True
