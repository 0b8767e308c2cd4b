"""Chained block hashes: the one key under which cached blocks are known.

Block *i* of a prompt has the hash ``xxh3_64(content_i, seed=hash_{i-1})`` and the
first one is seeded with the root hash, so a hash names the block together with
everything in front of it and everything that separates caches (model, LoRA, salt).
Requests and engine events are keyed here alike; the engines' own hashes are opaque.

Chains over different block sizes, or over tokens and text, never share a hash: the
hashed contents differ in length, and the root hash covers the grade.
"""

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, Literal, NewType

from xxhash import xxh3_64_intdigest

from warmroute.policies.errors import PolicyError

BlockHash = NewType("BlockHash", int)
"""Unsigned 64-bit hash of a block and of all blocks in front of it."""

TEXT_BLOCK_BYTES: Final = 256
"""Size in bytes of a block of canonical text, in the estimated grade."""

Grade = Literal["exact", "estimated"]

_TOKEN_BYTES: Final = 4
_MAX_STRUCTS: Final = 64
_AT_ONCE: Final = 64
_structs: Final[dict[int, tuple[Struct, Struct]]] = {}


def root_hash(
    model: str,
    *,
    lora: str | None = None,
    salt: str | None = None,
    grade: Grade = "exact",
    extra: Sequence[str] = (),
) -> int:
    """Return the seed of a chain: one value for each separate cache.

    Fields are length-prefixed, and an absent one differs from an empty one, so no
    two different inputs have the same encoding.

    Args:
        model: Base model as the engine serves it.
        lora: Adapter name, when the request runs on one.
        salt: The request's ``cache_salt``.
        grade: Whether the chain runs over token ids or over canonical text.
        extra: Anything else that separates caches, in a fixed order.
    """
    fields = (grade, model, lora, salt, *extra)
    return xxh3_64_intdigest(b"".join(map(_encoded, fields)))


def separate(parent: int, extras: Sequence[str]) -> int:
    """Return the seed of a block that *extras* separate from others of its tokens.

    For what belongs to one block in the middle of a chain, such as an image; what
    separates whole prompts is part of the root.
    """
    return xxh3_64_intdigest(b"".join(map(_encoded, extras)), parent)


def hash_tokens(tokens: "array[int]", block_size: int, root: int) -> list[int]:
    """Return the chained hashes of the full blocks of *tokens*.

    Args:
        tokens: Token ids as ``array("I")``, in the machine's byte order.
        block_size: Tokens a block.
        root: Seed of the chain, from `root_hash`.

    Raises:
        PolicyError: The block size is not positive, or the items are not 32 bits.
    """
    if block_size < 1 or tokens.itemsize != _TOKEN_BYTES:
        raise PolicyError(
            f"cannot hash blocks of {block_size} tokens of {tokens.itemsize} bytes "
            f"(allowed: a block size of 1 or more, array typecode 'I')"
        )
    if sys.byteorder == "big":
        tokens = tokens[:]
        tokens.byteswap()
    return _hash(memoryview(tokens).cast("B"), block_size * _TOKEN_BYTES, root)


def hash_text(text: bytes, root: int) -> list[int]:
    """Return the chained hashes of the full blocks of canonical *text*."""
    return _hash(text, TEXT_BLOCK_BYTES, root)


def _hash(contents: bytes | memoryview, block_bytes: int, root: int) -> list[int]:
    """Hash block after block, each seeded with the hash of the one before.

    A copy of a block costs less than a view of it, and 64 that one call copies cost
    less than 64 that an iterator does. One copy of all would cost the most: so much
    memory is often new, and every page of it a fault.
    """
    one, many = _structs.get(block_bytes) or _make_structs(block_bytes)
    last, hashes, at = root, [], 0
    end = len(contents) - len(contents) % block_bytes
    while at + many.size <= end:
        for block in many.unpack_from(contents, at):
            last = xxh3_64_intdigest(block, last)
            hashes.append(last)
        at += many.size
    for (block,) in one.iter_unpack(contents[at:end]):
        last = xxh3_64_intdigest(block, last)
        hashes.append(last)
    return hashes


def _make_structs(block_bytes: int) -> tuple[Struct, Struct]:
    """Make what cuts off one block, and what cuts off many."""
    if len(_structs) >= _MAX_STRUCTS:
        _structs.clear()
    one = f"{block_bytes}s"
    made = _structs[block_bytes] = Struct(one), Struct(one * _AT_ONCE)
    return made


def _encoded(field: str | None) -> bytes:
    if field is None:
        return b"-"
    data = field.encode("utf-8", "surrogatepass")
    return b"+%d:%b" % (len(data), data)
