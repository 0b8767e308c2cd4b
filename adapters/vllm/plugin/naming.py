"""Block hashes of a prompt, as the engine makes them."""

from collections.abc import Callable, Iterator, Sequence

_SLICE = 64

HashBlock = Callable[[bytes | None, Sequence[int], object], bytes]


class BlockNaming:
    """Hash the full blocks of token ids with the engine's own function.

    It must run in the engine's process, because some hash algorithms begin with a
    random number of that process.

    Args:
        block_size: Tokens a block.
        hash_block: Makes a hash of the parent's, the tokens and the extra keys.
    """

    __slots__ = ("_block_size", "_hash_block")

    def __init__(self, block_size: int, hash_block: HashBlock) -> None:
        self._block_size = block_size
        self._hash_block = hash_block

    def __repr__(self) -> str:
        return f"<BlockNaming in blocks of {self._block_size}>"

    def hash_prompt(
        self, tokens: Sequence[int], salt: str | None
    ) -> Iterator[list[int]]:
        """Yield the keys of the full blocks, 64 at a time."""
        size, parent, keys = self._block_size, None, []
        extra: object = (("cache_salt", salt),) if salt else None
        for end in range(size, len(tokens) + 1, size):
            parent = self._hash_block(parent, tokens[end - size : end], extra)
            keys.append(int.from_bytes(parent[-8:], "big"))
            extra = None
            if len(keys) == _SLICE:
                yield keys
                keys = []
        yield keys
