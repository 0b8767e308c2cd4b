"""Access records of ``warmroute serve``: a JSON object a request, blocks as hashes."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median_low
from typing import Annotated, Literal

import msgspec

from warmroute.proxy.replay.packing import read_lines
from warmroute.proxy.replay.trace import Trace, TraceError, TraceRequest

_FAILED = 400
_MOST_TOKENS = 10**9

Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]


class _Record(msgspec.Struct):
    time: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=10**6)]
    blocks: list[Hash]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)]
    grade: Literal["exact", "estimated"] = "exact"
    output_length: Annotated[int, msgspec.Meta(ge=0, le=_MOST_TOKENS)] | None = None
    session: str | None = None
    status: int = 200


def read_records(path: Path, lines: Sequence[bytes] | None = None) -> Trace:
    """Read access records, in whatever order; blank lines are passed over.

    They are written when a request ends, so they are sorted by when it came. Requests
    that failed are left out. An answer of unknown length counts as one token.

    What a hash of estimated text covers is a number of bytes; how many tokens that is,
    was learned while the records were written. So the median over all of them counts
    for each, and hashes that would then cover more than the prompt are left out.

    Raises:
        TraceError: The file or one of its lines cannot be read.
    """
    records: list[_Record] = []
    num_failed = 0
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        if not line.strip():
            continue
        try:
            record = _decode(line, records)
        except ValueError as error:
            raise TraceError(f"{path}:{number}: {error}") from error
        if record.status >= _FAILED:
            num_failed += 1
        else:
            records.append(record)
    if not records:
        raise TraceError(f"{path}: no request in it was answered")
    records.sort(key=lambda record: record.time)
    start, size = records[0].time, _block_size(records)
    requests = tuple(_request(record, record.time - start, size) for record in records)
    return Trace(path.name, size, requests, num_left_out=num_failed)


def _decode(line: bytes, earlier: Sequence[_Record]) -> _Record:
    try:
        record = msgspec.json.decode(line, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"no access record ({error}); is the line cut short?"
        ) from error
    if record.grade == "estimated":
        return record
    told = next((one.block_size for one in earlier if one.grade == "exact"), None)
    if told not in (None, record.block_size):
        raise ValueError(
            f"block_size is {record.block_size} (needed: {told}, as in the lines "
            f"before; replay one model at a time)"
        )
    most = record.input_length // record.block_size
    if len(record.blocks) > most:
        raise ValueError(
            f"{len(record.blocks)} blocks for {record.input_length} tokens (allowed: "
            f"{most} full ones of {record.block_size} tokens)"
        )
    return record


def _block_size(records: Sequence[_Record]) -> int:
    exact = [one.block_size for one in records if one.grade == "exact"]
    return exact[0] if exact else median_low(one.block_size for one in records)


def _request(record: _Record, time_s: float, block_size: int) -> TraceRequest:
    output = 1 if record.output_length is None else record.output_length
    full = record.blocks[: record.input_length // block_size]
    blocks = tuple(int(block, 16) for block in full)
    return TraceRequest(
        time_s, record.input_length, output, blocks, session=record.session
    )
