"""How much is copied at a time, so that no step and no call takes long by it."""

SLICE_BYTES = 2 << 20
"""Bytes copied at a time, in either direction; a layer that is larger is one slice."""


def num_whole(block_bytes: int) -> int:
    """Return how many blocks are copied at a time."""
    return max(1, SLICE_BYTES // max(1, block_bytes))


def num_parts(block_bytes: int, num_layers: int) -> int:
    """Return in how many parts a block is copied, each of some of its layers."""
    return max(1, min(num_layers, -(-block_bytes // SLICE_BYTES)))


def layers_of(part: int, parts: int, num_layers: int) -> range:
    """Return the layers of one of so many parts."""
    return range(num_layers * part // parts, num_layers * (part + 1) // parts)
