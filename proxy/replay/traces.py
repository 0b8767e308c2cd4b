"""Read a trace in whichever form it is."""

from pathlib import Path
from typing import Final

import msgspec

from warmroute.proxy.replay.azure import HEADER, read_azure
from warmroute.proxy.replay.mooncake import read_mooncake
from warmroute.proxy.replay.packing import read_lines
from warmroute.proxy.replay.rag import PREFIX, read_rag
from warmroute.proxy.replay.records import read_records
from warmroute.proxy.replay.sessions import SessionReader
from warmroute.proxy.replay.trace import Trace

MAX_PROMPT: Final = 131_072
MAX_THINK_S: Final = 300.0


def read_trace(
    name: str, most_tokens: int = MAX_PROMPT, most_think_s: float = MAX_THINK_S
) -> Trace:
    """Read the trace *name*: a file, or ``rag:`` for a made load.

    The form is told by the first line: a CSV header of Azure, a session, an access
    record; anything else is taken for Mooncake's.

    Args:
        name: The file.
        most_tokens: The longest prompt with its answer that an engine takes.
        most_think_s: Sessions pause no longer; who does has left.

    Raises:
        TraceError: It cannot be read.
    """
    if name.startswith(PREFIX):
        return read_rag(name)
    path = Path(name)
    lines = read_lines(path)
    first = next(line for line in lines if line.strip())
    if first.strip().startswith(HEADER):
        return read_azure(path, lines)
    keys = _keys(first)
    if "requests" in keys:
        return SessionReader(most_tokens, most_think_s).read(path, lines)
    if {"time", "blocks"} <= keys or {"block_size", "status"} <= keys:
        return read_records(path, lines)
    return read_mooncake(path, lines)


def _keys(line: bytes) -> set[str]:
    try:
        row = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return set()
    return set(row)
