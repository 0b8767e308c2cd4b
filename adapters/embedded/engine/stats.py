"""What an engine counts, and whom it tells as it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmroute.adapters.embedded.engine.request import GenerationRequest
    from warmroute.adapters.embedded.engine.stream import FinishReason


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Hold counters and gauges of an engine as of its last step.

    Args:
        running: Sequences in the running batch.
        waiting: Sequences that wait for blocks or for a seat.
        kv_usage: Share of the blocks in use by sequences, 0 to 1.
        prefix_queries: Prompt tokens looked up in the prefix cache, ever.
        prefix_hits: Prompt tokens found there, those from the host tier included.
        host_hits: Prompt tokens that came back from the host tier.
        preemptions: Sequences that gave up their blocks to be computed anew.
        prompt_tokens: Prompt tokens of requests that got their first token.
        generation_tokens: Tokens generated.
        peak_blocks: Most blocks referenced at once, since the start.
        steps: Steps that computed something.
        num_blocks: Blocks that sequences may use.
        block_size: Tokens a block.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    host_hits: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    peak_blocks: int = 0
    steps: int = 0
    num_blocks: int = 0
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """Say how a request ended.

    Args:
        request: The request as submitted.
        reasons: Finish reason of each choice, by index.
        cached_tokens: Prompt tokens that came from the prefix cache.
        generation_tokens: Tokens generated, over all choices.
        e2e_s: Seconds from submission to the end.
    """

    request: GenerationRequest
    reasons: tuple[FinishReason, ...]
    cached_tokens: int
    generation_tokens: int
    e2e_s: float


class EngineObserver:
    """Follow what an engine does; every method is a no-op to override.

    All methods are called on the compute thread, between the parts of a step, so
    they must be quick, must not block, and must not touch an event loop. An
    exception is logged once per method and never reaches a request.
    """

    def first_token(self, request: GenerationRequest, ttft_s: float) -> None:
        """The first token of a request was sampled, *ttft_s* after submission."""

    def inter_token(self, request: GenerationRequest, gap_s: float) -> None:
        """A choice got a further token, *gap_s* after the one before."""

    def finished(self, outcome: FinishedRequest) -> None:
        """All choices of a request ended: stopped, full, aborted or failed."""

    def preempted(self, request: GenerationRequest) -> None:
        """A sequence gave up its blocks and waits to be computed anew."""

    def step_ended(self, stats: EngineStats) -> None:
        """A step ended, or a call between two steps did."""
