"""Chunks that fill a segment, as engines send the events of a stream."""

from typing import Final

_MAX_BYTES: Final = 4096


def _size_lines() -> list[bytes]:
    """Return, by the length of a whole chunk, the line it begins with."""
    lines = [b""] * _MAX_BYTES
    for size in range(1, _MAX_BYTES):
        line = b"%x\r\n" % size
        if (length := len(line) + size + 2) < _MAX_BYTES:
            lines[length] = line
    return lines


_SIZE_LINES: Final = _size_lines()


def content_start(data: bytes) -> int:
    """Return where the content begins if *data* is one whole chunk, else 0.

    Only chunks below 4 KiB in their plainest form are recognised: a size in lower
    case, no leading zeros, no extensions, not the last one. O(1).
    """
    if len(data) >= _MAX_BYTES:
        return 0
    line = _SIZE_LINES[len(data)]
    if line and data.startswith(line) and data.endswith(b"\r\n"):
        return len(line)
    return 0
