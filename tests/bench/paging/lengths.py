"""Lengths of requests: those of a trace, or of a small generated mix."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random

TRACE_BLOCK = 512
"""Tokens in one block of a trace's ``hash_ids``."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as memory sees it."""

    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    """One a started block of 512 prompt tokens; equal ones have equal prefixes."""

    @property
    def total_tokens(self) -> int:
        """Tokens at the end of the request."""
        return self.prompt_tokens + self.output_tokens

    def page_hashes(self, block_size: int) -> list[int]:
        """Name each full page of the prompt; equal names have equal prefixes."""
        per_block = TRACE_BLOCK // block_size
        full = self.prompt_tokens // block_size
        return [
            block_id * per_block + part
            for block_id in self.block_ids
            for part in range(per_block)
        ][:full]


def read_text(path: Path) -> str:
    """Return the text of a file, through ``zstd -dc`` when its name ends in .zst."""
    if path.suffix != ".zst":
        return path.read_text()
    done = subprocess.run(["zstd", "-dc", path], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode()


def read_trace(path: Path, limit: int | None) -> list[Request]:
    """Read a Mooncake trace: JSON lines with lengths and ``hash_ids``."""
    rows = map(json.loads, read_text(path).splitlines()[:limit])
    return [
        Request(row["input_length"], row["output_length"], tuple(row["hash_ids"]))
        for row in rows
    ]


def generated(count: int = 2_000, seed: int = 1) -> list[Request]:
    """Make up a chat mix of at most 8,192 tokens a request.

    Prompts are log-normal (median 900, sigma 0.9) behind one of 4 system prompts of
    512 tokens, outputs log-normal (median 200, sigma 0.8), at most 1,024.
    """
    rng, requests, next_id = Random(seed), [], 4
    for _ in range(count):
        prompt = 512 + min(6_656, int(rng.lognormvariate(6.8, 0.9)) + 1)
        output = min(1_024, int(rng.lognormvariate(5.3, 0.8)) + 1)
        own = -(-prompt // TRACE_BLOCK) - 1
        ids = (rng.randrange(4), *range(next_id, next_id + own))
        next_id += own
        requests.append(Request(prompt, output, ids))
    return requests
