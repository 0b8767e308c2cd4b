"""Traces of Mooncake: a JSON object a line, prompts as ids of 512-token blocks.

Qin et al. 2024, "Mooncake: A KVCache-centric Disaggregated Architecture for LLM
Serving", published with such traces. An id stands for a block with all in front of it,
and the last block of a prompt may be partial.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from warmroute.proxy.replay.packing import read_lines
from warmroute.proxy.replay.trace import Trace, TraceError, TraceRequest

BLOCK_SIZE: Final = 512
_FIELDS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
_MOST_MS: Final = 10**15
_MOST_TOKENS: Final = 10**9
_SHOWN: Final = 60


def read_mooncake(path: Path, lines: Sequence[bytes] | None = None) -> Trace:
    """Read a trace from *path*; blank lines are passed over.

    Raises:
        TraceError: The file or one of its lines cannot be read.
    """
    requests: list[TraceRequest] = []
    first_ms = last_ms = None
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        if not line.strip():
            continue
        try:
            row = _decode(line)
            now_ms = _timestamp(row, last_ms)
            first_ms = now_ms if first_ms is None else first_ms
            requests.append(_request(row, (now_ms - first_ms) / 1000))
        except ValueError as error:
            raise TraceError(f"{path}:{number}: {error}") from error
        last_ms = now_ms
    return Trace(path.name, BLOCK_SIZE, tuple(requests))


def _decode(line: bytes) -> dict[str, object]:
    try:
        row: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"not JSON ({error}); is the line cut short? It ends in {_show(line[-30:])}"
        ) from error
    if not isinstance(row, dict):
        raise ValueError(f"{_show(row)} is not an object with {', '.join(_FIELDS)}")
    missing = [name for name in _FIELDS if name not in row]
    if missing:
        raise ValueError(
            f"{' and '.join(missing)} missing (needed: {', '.join(_FIELDS)})"
        )
    return row


def _timestamp(row: dict[str, object], last_ms: float | None) -> float:
    now_ms = row["timestamp"]
    if isinstance(now_ms, bool) or not isinstance(now_ms, int | float):
        raise ValueError(f"timestamp is {_show(now_ms)} (allowed: milliseconds)")
    if not abs(now_ms) <= _MOST_MS:
        raise ValueError(
            f"timestamp is {_show(now_ms)} (allowed: milliseconds up to {_MOST_MS})"
        )
    if last_ms is not None and now_ms < last_ms:
        raise ValueError(
            f"time goes backwards: timestamp {now_ms} ms follows {last_ms} ms; sort "
            f"the lines by timestamp"
        )
    return now_ms


def _request(row: dict[str, object], time_s: float) -> TraceRequest:
    prompt = _length(row, "input_length", 1)
    output = _length(row, "output_length", 0)
    ids = row["hash_ids"]
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise ValueError(f"hash_ids is {_show(ids)} (allowed: a list of whole numbers)")
    num_full, num_all = prompt // BLOCK_SIZE, -(-prompt // BLOCK_SIZE)
    if not num_full <= len(ids) <= num_all:
        raise ValueError(
            f"{len(ids)} hash_ids for {prompt} tokens (needed: {num_all} of "
            f"{BLOCK_SIZE} tokens each, the partial last one may be left out)"
        )
    return TraceRequest(time_s, prompt, output, tuple(ids[:num_full]))


def _length(row: dict[str, object], name: str, least: int) -> int:
    value = row[name]
    if type(value) is not int or not least <= value <= _MOST_TOKENS:
        raise ValueError(
            f"{name} is {_show(value)} (allowed: whole numbers, {least} to "
            f"{_MOST_TOKENS})"
        )
    return value


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
