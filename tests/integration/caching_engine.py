"""A fake of vLLM that answers completions of token ids from a prefix cache.

It holds every full block it has seen, apart for each model and salt, and reports
cached tokens as vLLM does. It generates nothing.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from conformance.raw_engine import RawEngine, Request, answer

BLOCK = 16
MODELS = [
    {"id": "m", "object": "model", "owned_by": "vllm", "parent": None},
    {"id": "tuned", "object": "model", "owned_by": "vllm", "parent": "m"},
]
METRICS = (
    "# TYPE vllm:cache_config_info gauge\n"
    f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="100000"}} 1.0\n'
    "# TYPE process_start_time_seconds gauge\n"
    "process_start_time_seconds 1790000000.5\n"
)


@dataclass
class CachingEngine(RawEngine):
    """Serve the model `m` and its LoRA `tuned`, 16 tokens a block."""

    held: set[int] = field(default_factory=set)

    @property
    def entry(self) -> dict[str, Any]:
        return {"url": self.url, "engine": "vllm", "kv_events": False}

    def _answer_probe(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            listing = {"object": "list", "data": MODELS}
            writer.write(answer(json.dumps(listing).encode()))
        elif path == "/metrics":
            writer.write(answer(METRICS.encode(), kind="text/plain"))
        else:
            super()._answer_probe(path, writer)

    def serve_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        """Take a prompt into the cache; returns the usage to report."""
        prompt = body["prompt"]
        last = hash((body["model"], body.get("cache_salt")))
        blocks = []
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            last = hash((last, *prompt[end - BLOCK : end]))
            blocks.append(last)
        cached = 0
        for block in blocks[: (len(prompt) - 1) // BLOCK]:
            if block not in self.held:
                break
            cached += BLOCK
        self.held.update(blocks)
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def caching_engine() -> CachingEngine:
    """Make an engine; it is not started."""
    engine: CachingEngine

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        usage = engine.serve_tokens(json.loads(request.body))
        writer.write(answer(json.dumps({"id": "x", "usage": usage}).encode()))

    engine = CachingEngine(script)
    return engine
