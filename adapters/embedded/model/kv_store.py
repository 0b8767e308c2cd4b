"""The memory of all pages: keys and values of every layer."""

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.shared_memory import shared_zeros
from warmroute.adapters.tokens.errors import ModelError


class KVStore:
    """Keys and values by slot; slot = page * block_size + offset.

    Processes that are forked see the same ones.

    Keys are stored after RoPE, so a slot may hold any position. Pages with
    consecutive numbers lie side by side and are read without a copy.

    Args:
        config: Gives layers, KV heads and their width.
        num_pages: Pages, the null page included.
        block_size: Slots a page.

    Attributes:
        pairs: ``[2 * kv_heads, slots, d]`` a layer: its keys, then its values.
        keys: ``[kv_heads, slots, d]`` a layer, a view.
        values: The same for the values.

    Raises:
        ModelError: A size is not positive, or the memory is not to be had.
    """

    __slots__ = ("_data", "block_size", "keys", "num_pages", "pairs", "values")

    def __init__(self, config: LlamaConfig, num_pages: int, block_size: int) -> None:
        if num_pages < 1 or block_size < 1:
            raise ModelError(
                f"a KV store of {num_pages} pages of {block_size} slots (allowed: 1 "
                "or more of each)"
            )
        heads, width = config.num_kv_heads, config.head_dim
        shape = (config.num_layers, 2, heads, num_pages, block_size, width)
        try:
            self._data = shared_zeros(*shape)
        # The last two: beyond the address space.
        except (OSError, OverflowError, ValueError) as error:
            size = num_pages * block_size * config.kv_bytes_per_token
            raise ModelError(
                f"no memory for {num_pages} pages of {block_size} tokens "
                f"({size / 1e9:.1f} GB); ask for fewer blocks"
            ) from error
        self.num_pages = num_pages
        self.block_size = block_size
        self.pairs: list[F32] = [
            layer.reshape(2 * heads, num_pages * block_size, width)
            for layer in self._data
        ]
        self.keys = [pair[:heads] for pair in self.pairs]
        self.values = [pair[heads:] for pair in self.pairs]

    def __repr__(self) -> str:
        return f"<KVStore {self.num_pages} x {self.block_size}, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self._data.nbytes

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of page *source* to page *target*."""
        self._data[:, :, :, target] = self._data[:, :, :, source]

    def read_page(self, page: int) -> F32:
        """Return a copy of *page*: ``[layers, 2, kv_heads, block_size, d]``."""
        return self._data[:, :, :, page].copy()

    def write_page(self, page: int, content: F32) -> None:
        """Put what `read_page` returned into *page*."""
        self._data[:, :, :, page] = content
