"""Small traces and fleets for the tests of replay."""

import json
from pathlib import Path
from typing import Any

from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace, TraceRequest

BLOCK = 512
RATE = 1000.0


def ask(time_s: float, tokens: int, *blocks: int, output: int = 0) -> TraceRequest:
    """Make a request; blocks that are not named are unlike all others."""
    assert len(blocks) <= tokens // BLOCK
    rest = range(len(blocks), tokens // BLOCK)
    unlike = (hash((time_s, tokens, at)) | 1 << 62 for at in rest)
    return TraceRequest(time_s, tokens, output, (*blocks, *unlike))


def trace_of(*requests: TraceRequest) -> Trace:
    return Trace("trace", BLOCK, requests)


def setting(backends: int = 1, blocks: int = 100, **options: Any) -> Setting:
    return Setting(backends, blocks * BLOCK, RATE, **options)


def row(time_ms: float, tokens: int, ids: list[int], output: int = 1) -> dict[str, Any]:
    return {
        "timestamp": time_ms,
        "input_length": tokens,
        "output_length": output,
        "hash_ids": ids,
    }


def write_trace(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path
