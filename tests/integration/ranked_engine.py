"""A fake of vLLM with data-parallel ranks, each with a prefix cache of its own.

It generates nothing. Its caches and answers are made up; its events are published by
the embedded engine's publisher, over real sockets, one publisher a rank.
"""

import asyncio
import json
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import zmq
from conformance.raw_engine import RawEngine, Request, answer
from integration.caching_engine import BLOCK, METRICS, MODELS

from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.kv_wire import (
    SPEC_KIND,
    AllBlocksCleared,
    BlockStored,
)

RANK = "x-data-parallel-rank"


class Rank:
    """One rank: the blocks that it holds, and who tells of them."""

    def __init__(self, number: int, context: "zmq.Context[Any]") -> None:
        self.number = number
        self.held: set[int] = set()
        self.publisher = KVEventPublisher(
            "tcp://*:0",
            "tcp://*:0",
            topic="kv",
            rank=number,
            interface="127.0.0.1",
            context=context,
        )
        self.publisher.start()

    def serve(self, prompt: list[int]) -> int:
        """Take a prompt into the cache; returns its cached tokens."""
        last, cached, events = 0, 0, []
        for end in range(BLOCK, len(prompt) + 1, BLOCK):
            parent, tokens = last, prompt[end - BLOCK : end]
            last = hash((parent, *tokens)) & (1 << 64) - 1
            if last in self.held:
                cached += BLOCK * (end < len(prompt))
                continue
            self.held.add(last)
            events.append(
                BlockStored(
                    block_hashes=[last],
                    parent_block_hash=parent or None,
                    token_ids=tokens,
                    block_size=BLOCK,
                    lora_id=None,
                    medium="GPU",
                    lora_name=None,
                    group_idx=0,
                    kv_cache_spec_kind=SPEC_KIND,
                )
            )
        if events:
            self.publisher.publish(events)
        return cached

    def clear(self) -> None:
        """Lose everything, and say so."""
        self.held.clear()
        self.publisher.publish([AllBlocksCleared()])


@dataclass
class RankedEngine(RawEngine):
    """Serve the model `m` on two ranks; the client's header says on which."""

    ranks: list[Rank] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    publishes: bool = True

    @property
    def sources(self) -> dict[str, object]:
        """What it tells of its publishers."""
        if not self.publishes:
            return {}
        return {str(one.number): one.publisher.source() for one in self.ranks}

    def _answer_probe(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/models":
            listing = {"object": "list", "data": MODELS}
            writer.write(answer(json.dumps(listing).encode()))
        elif path == "/metrics":
            writer.write(answer(self._metrics().encode(), kind="text/plain"))
        else:
            super()._answer_probe(path, writer)

    def _metrics(self) -> str:
        kind, config, *rest = METRICS.splitlines()
        ranks = [
            config.replace("{", f'{{engine="{one.number}",', 1) for one in self.ranks
        ]
        return "\n".join([kind, *ranks, *rest, ""])


def ranked_engine(context: "zmq.Context[Any]", publishes: bool = True) -> RankedEngine:
    """Make an engine of two ranks; its publishers run, it is not started itself."""
    ranks = [Rank(number, context) for number in range(2)]
    turns = cycle(ranks)

    async def script(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/kv_event_sources":
            writer.write(answer(json.dumps(engine.sources).encode()))
            return
        if request.path != "/v1/completions":  # a probe for what it has not
            writer.write(answer(b"{}", "404 Not Found"))
            return
        told = request.values(RANK)
        engine.asked.append(",".join(told) if told else None)
        rank = engine.ranks[int(told[0])] if told else next(turns)
        prompt = json.loads(request.body)["prompt"]
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": rank.serve(prompt)},
        }
        writer.write(answer(json.dumps({"id": "x", "usage": usage}).encode()))

    engine = RankedEngine(script, ranks=ranks, publishes=publishes)
    return engine
