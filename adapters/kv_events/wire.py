"""The wire format of KV events, as vLLM and SGLang send it.

A message is three frames: topic, sequence number (8 bytes, big-endian), and a batch in
msgpack, ``[timestamp, events, dp_rank]``. An event is a map with its name under
``type``, or in older releases an array that begins with its name. Both are read; an
event that is unknown or broken is skipped alone, never the batch.
"""

from array import array
from typing import Any

import msgspec

from warmroute.policies.errors import ProtocolMismatch

MAX_BLOCK_SIZE = 1 << 16

_KEY_MASK = (1 << 64) - 1
_KEY_BYTES = 8
_GPU = "GPU"

Hash = int | bytes


class Stored(msgspec.Struct, gc=False, tag="BlockStored"):
    """Say that blocks are cached now, one behind the other.

    Args:
        block_hashes: The engine's hash of each block.
        parent_block_hash: That of the block in front; None at the start of a prompt.
        token_ids: Tokens of all blocks.
        block_size: Tokens a block.
        lora_id: Number of the LoRA adapter; only its presence says something, for
            which one it is nobody knows but the engine.
        medium: ``GPU``, or a lower tier; None is the GPU.
        lora_name: Name of the LoRA adapter.
        extra_keys: What else is part of each block's hash, None where nothing is.
        group_idx: Which group of layers the blocks belong to.
        kv_cache_spec_kind: What kind of attention those have; None is full.
        cache_salt: Salt of the prompt, where the engine sends it beside the blocks
            (SGLang) and not in the *extra_keys* of the first one (vLLM).
    """

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    cache_salt: str | None = None

    @property
    def is_sound(self) -> bool:
        """Tell whether the blocks and their tokens fit together."""
        size, num_tokens = self.block_size, len(self.token_ids)
        return (
            0 < size <= MAX_BLOCK_SIZE and num_tokens == len(self.block_hashes) * size
        )

    def part(self, first: int, end: int) -> "Stored":
        """Return the same of the blocks from *first* on and before *end* alone."""
        size, extra = self.block_size, self.extra_keys
        return msgspec.structs.replace(
            self,
            block_hashes=self.block_hashes[first:end],
            parent_block_hash=self.block_hashes[first - 1]
            if first
            else self.parent_block_hash,
            token_ids=self.token_ids[first * size : end * size],
            extra_keys=None if extra is None else extra[first:end],
        )


class Removed(msgspec.Struct, gc=False, tag="BlockRemoved"):
    """Say that blocks are cached no more."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None

    def part(self, first: int, end: int) -> "Removed":
        """Return the same of the blocks from *first* on and before *end* alone."""
        blocks = self.block_hashes[first:end]
        return msgspec.structs.replace(self, block_hashes=blocks)


class Cleared(msgspec.Struct, gc=False, tag="AllBlocksCleared"):
    """Say that nothing is cached any more."""


Event = Stored | Removed | Cleared


class _OldStored(Stored, gc=False, tag="BlockStored", array_like=True):
    """The same as an array."""


class _OldRemoved(Removed, gc=False, tag="BlockRemoved", array_like=True):
    """The same as an array."""


class _OldCleared(Cleared, gc=False, tag="AllBlocksCleared", array_like=True):
    """The same as an array."""


class _Maps(msgspec.Struct, gc=False, array_like=True):
    timestamp: float
    events: list[Stored | Removed | Cleared]
    dp_rank: int | None = None


class _Raws(msgspec.Struct, gc=False, array_like=True):
    timestamp: float
    events: list[msgspec.Raw]
    dp_rank: int | None = None


class Batch(msgspec.Struct, gc=False):
    """Hold what one message says.

    Args:
        timestamp: When the engine made it, in seconds of its wall clock.
        events: In the order in which they happened.
        dp_rank: Data-parallel rank that sent it.
        num_skipped: Events that were unknown or broken.
    """

    timestamp: float
    events: list[Event]
    dp_rank: int | None
    num_skipped: int = 0


# A batch that is nested too deep is no batch, either.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_read_maps = msgspec.msgpack.Decoder(_Maps).decode
_read_raws = msgspec.msgpack.Decoder(_Raws).decode
_read_map = msgspec.msgpack.Decoder(Stored | Removed | Cleared).decode
_read_array = msgspec.msgpack.Decoder(_OldStored | _OldRemoved | _OldCleared).decode


def decode(payload: bytes) -> Batch:
    """Read one batch. O(its tokens).

    Raises:
        ProtocolMismatch: It is no batch at all.
    """
    try:
        batch = _read_maps(payload)
    except _UNREADABLE:
        return _decode_one_by_one(payload)
    sound = [event for event in batch.events if _is_sound(event)]
    num_skipped = len(batch.events) - len(sound)
    return Batch(batch.timestamp, sound, batch.dp_rank, num_skipped)


def cut(payload: bytes, most_bytes: int = 0) -> list[bytes]:
    """Return a batch as smaller batches, none of which is read yet.

    Each has one event, and further ones up to *most_bytes*. What is no batch comes
    back as it is. O(bytes), and ten times faster than to read them.
    """
    try:
        raws = _read_raws(payload)
    except _UNREADABLE:
        return [payload]
    parts: list[list[msgspec.Raw]] = []
    num_bytes = most_bytes
    for raw in raws.events:
        size = memoryview(raw).nbytes
        num_bytes += size
        if num_bytes > most_bytes or not parts:
            parts.append([])
            num_bytes = size
        parts[-1].append(raw)
    write = msgspec.msgpack.encode
    return [write(_Raws(raws.timestamp, part, raws.dp_rank)) for part in parts]


def block_key(block_hash: Hash) -> int:
    """Return an engine's block hash as an unsigned 64-bit key.

    Numbers come signed from SGLang and unsigned from vLLM; of bytes the last eight
    count, which is what vLLM makes its numbers of.
    """
    if isinstance(block_hash, bytes):
        return int.from_bytes(block_hash[-_KEY_BYTES:], "big")
    return block_hash & _KEY_MASK


def block_keys(block_hashes: list[Hash]) -> "array[int]":
    """Return the keys of many blocks as ``array("Q")``; fastest where they are such."""
    keys = array("Q")
    try:
        keys.fromlist(block_hashes)  # type: ignore[arg-type]  # what fails, is told
    except (OverflowError, TypeError):
        keys.fromlist([block_key(one) for one in block_hashes])
    return keys


def tier_of(medium: str | None) -> str:
    """Return the tier that a medium stands for: ``gpu``, ``host`` or ``disk``."""
    if medium is None or medium == _GPU:
        return "gpu"
    return "host" if medium.upper().startswith("CPU") else "disk"


def _decode_one_by_one(payload: bytes) -> Batch:
    try:
        raws = _read_raws(payload)
    except _UNREADABLE as error:
        raise ProtocolMismatch(
            f"message of {len(payload)} bytes is no batch of KV events "
            f"(allowed: [timestamp, events, dp_rank] in msgpack): {error}"
        ) from error
    events: list[Event] = []
    for raw in raws.events:
        content = memoryview(raw)
        try:
            event = _read_map(content) if _is_map(content) else _read_array(content)
        except _UNREADABLE:
            continue
        if _is_sound(event):
            events.append(event)
    num_skipped = len(raws.events) - len(events)
    return Batch(raws.timestamp, events, raws.dp_rank, num_skipped)


def _is_map(content: memoryview) -> bool:
    first = content[0]
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


def _is_sound(event: Event) -> bool:
    return not isinstance(event, Stored) or event.is_sound
