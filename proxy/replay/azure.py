"""Azure's traces of lengths alone, with prefixes that are invented.

The published files (Patel et al. 2024, "Splitwise"; AzurePublicDataset) say when a
prompt came and how long it and its answer were, not what was in it. Here every other
prompt is the next turn of a conversation, the one among the last 256 whose prompt and
answer are the longest that still fit into it; the others begin anew, with one of eight
system prompts of 256 tokens at most, the n-th of which is chosen with 1/n. The draws
are the same for every replay. So figures that come from hits are of this invention, and
only times and lengths are Azure's.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Final

from warmroute.proxy.replay.packing import read_lines
from warmroute.proxy.replay.trace import Trace, TraceError, TraceRequest

HEADER: Final = b"TIMESTAMP,ContextTokens,GeneratedTokens"
BLOCK_SIZE: Final = 64
_NEXT_TURN: Final = 0.5
_SYSTEM_PROMPTS: Final = 8
_SYSTEM_BLOCKS: Final = 4
_REMEMBERED: Final = 256
_MOST_TOKENS: Final = 10**9

_Row = tuple[float, int, int]


def read_azure(path: Path, lines: Sequence[bytes] | None = None) -> Trace:
    """Read a CSV file; blank lines are passed over.

    Raises:
        TraceError: The file or one of its lines cannot be read.
    """
    invention = _Invention()
    requests: list[TraceRequest] = []
    first_s = last_s = 0.0
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        if not line.strip() or number == 1:
            continue
        try:
            now_s, prompt, output = _row(line)
            if requests and now_s < last_s:
                raise ValueError("time goes backwards; sort the lines by TIMESTAMP")
        except ValueError as error:
            raise TraceError(f"{path}:{number}: {error}") from error
        first_s = now_s if not requests else first_s
        last_s = now_s
        blocks = invention.blocks(prompt, output)
        requests.append(TraceRequest(now_s - first_s, prompt, output, blocks))
    if not requests:
        raise TraceError(f"{path}:1: no line behind the header")
    return Trace(path.name, BLOCK_SIZE, tuple(requests))


class _Invention:
    """Give prompts of known lengths a past."""

    __slots__ = ("_next_block", "_recent", "_rng")

    def __init__(self) -> None:
        self._rng = Random("azure prefixes")
        self._recent: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=_REMEMBERED)
        self._next_block = _SYSTEM_PROMPTS * _SYSTEM_BLOCKS

    def blocks(self, prompt: int, output: int) -> tuple[int, ...]:
        """Return the full blocks of the next prompt."""
        count = prompt // BLOCK_SIZE
        known = self._known(prompt)[:count]
        blocks = (*known, *self._new(count - len(known)))
        total = prompt + output
        answer = self._new(total // BLOCK_SIZE - count)
        self._recent.append((total, (*blocks, *answer)))
        return blocks

    def _known(self, prompt: int) -> tuple[int, ...]:
        if self._rng.random() < _NEXT_TURN:
            by_length = sorted(self._recent)
            place = bisect_right(by_length, (prompt,)) - 1
            if place >= 0:
                self._recent.remove(by_length[place])
                return by_length[place][1]
        weights = [1 / (rank + 1) for rank in range(_SYSTEM_PROMPTS)]
        (rank,) = self._rng.choices(range(_SYSTEM_PROMPTS), weights)
        first = rank * _SYSTEM_BLOCKS
        return tuple(range(first, first + _SYSTEM_BLOCKS))

    def _new(self, count: int) -> range:
        first = self._next_block
        self._next_block += count
        return range(first, first + count)


def _row(line: bytes) -> _Row:
    cells = line.decode(errors="replace").strip().split(",")
    if len(cells) != 3:
        raise ValueError(
            f"{len(cells)} cells (needed: {HEADER.decode()}); is the line cut short?"
        )
    try:
        now_s = datetime.fromisoformat(cells[0]).timestamp()
    except ValueError as error:
        raise ValueError(
            f"TIMESTAMP is {cells[0][:60]!r} (allowed: ISO 8601)"
        ) from error
    return (
        now_s,
        _length("ContextTokens", cells[1], 1),
        _length("GeneratedTokens", cells[2], 0),
    )


def _length(name: str, text: str, least: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not least <= value <= _MOST_TOKENS:
        raise ValueError(
            f"{name} is {text[:60]!r} (allowed: whole numbers, {least} to "
            f"{_MOST_TOKENS})"
        )
    return value
