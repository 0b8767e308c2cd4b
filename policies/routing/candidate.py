"""What a policy is told of a request and of each backend, and what it answers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

from warmroute.policies.routing.rates import (
    COLD_OUTPUT_TOKENS,
    COLD_RATE,
    SpeedClass,
)
from warmroute.policies.routing.samples import SHRINK_S, Samples

if TYPE_CHECKING:
    from warmroute.policies.routing.reservation import Reservation

Cost = tuple[float, float, float, float]
"""Seconds of one candidate: wait, miss, decode, and their total."""


class Costs(Sequence[Cost]):
    """The costs of all candidates as one flat run, four numbers each.

    Cheaper to make and to keep than a list of tuples, which a policy may give as
    well. The tuples are made when somebody asks, only those that are asked for.
    """

    __slots__ = ("flat",)

    def __init__(self, flat: Sequence[float]) -> None:
        self.flat = flat

    def __repr__(self) -> str:
        return f"<Costs {list(self)}>"

    def __len__(self) -> int:
        return len(self.flat) // 4

    def __iter__(self) -> Iterator[Cost]:
        numbers = iter(self.flat)
        return zip(numbers, numbers, numbers, numbers, strict=True)

    @overload
    def __getitem__(self, index: int) -> Cost: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cost]: ...
    def __getitem__(self, index: int | slice) -> Cost | list[Cost]:
        if isinstance(index, slice):
            return list(self)[index]
        at = 4 * range(len(self))[index]
        wait_s, miss_s, decode_s, total_s = self.flat[at : at + 4]
        return wait_s, miss_s, decode_s, total_s


@dataclass(slots=True, eq=False)
class Candidate:
    """What a policy may know of one backend: numbers, no services.

    Owned by `FleetLoad`, which keeps the counts, and by the router, which sets
    *matched_tokens* before each choice. A policy only reads.
    """

    name: str
    speed: SpeedClass = field(default_factory=SpeedClass)
    """Learned figures of its class; shared by all backends of the class."""
    matched_tokens: int = 0
    """Prompt tokens of this request that are cached here, in whole blocks."""
    requests: int = 0
    """Our requests here, from dispatch to the end of the answer."""
    decodes: int = 0
    """Those of them that are past their first token."""
    prefill_tokens: int = 0
    """Uncached prompt tokens of those that are not."""
    context_tokens: int = 0
    """Prompt tokens of all of them."""
    queued_tokens: int = 0
    """Prompt tokens that wait for it elsewhere: of other clients in the engine, as it
    reports, and uncached ones of ours that the router holds back."""
    held_tokens: int = 0
    """Those of them that the router holds back."""
    head_tokens: int = 0
    """Uncached tokens of the oldest request without a first token."""
    head_since: float = 0.0
    """When that one was dispatched."""
    last_first_token: float = 0.0
    """When the newest first token came from here."""
    rate: float = COLD_RATE
    """Prefill speed in tokens per second, learned and shrunk to its class."""
    tok: float = 0.0
    """EWMA sum of uncached tokens that it computed; for *rate*."""
    busy: float = 0.0
    """EWMA sum of the seconds that it took over them."""
    learned_at: float = 0.0
    """When those sums last changed."""
    samples: Samples = field(default_factory=Samples, repr=False)
    """The newest of what they are made of."""
    shrink_s: float = SHRINK_S
    """K: busy seconds at which they weigh as much as the class in *rate*."""
    kv_usage: float | None = None
    """Share of the KV pool in use, 0 to 1; unknown is not idle."""
    waiting: OrderedDict[Reservation, None] = field(
        default_factory=OrderedDict, repr=False
    )
    """Requests without a first token, oldest first."""

    @property
    def itl_s(self) -> float:
        """Seconds between two tokens of a stream here, under the load of now."""
        return self.speed.line.itl_s(max(1, self.requests), self.context_tokens)


@dataclass(slots=True)
class Query:
    """One request, as far as routing is concerned."""

    prompt_tokens: int
    now: float
    session: str | None = None
    rho: float = 0.0
    """Prefill utilisation of the pool: work sent in 60 s over what 60 s can do."""
    output_tokens: float = COLD_OUTPUT_TOKENS
    """Expected length of the answer."""
    blocks: Sequence[int] = ()
    """Chained block hashes of the prompt's leading full blocks; empty if not known."""
    depth_tokens: float | None = None
    """How deep in its prompt a computed token is, the mean of late; None if unknown."""
    block_tokens: float = 0.0
    """Nominal tokens a block of *blocks*."""


@dataclass(slots=True)
class Choice:
    """The answer of a policy."""

    index: int
    """Which candidate, by its place in the sequence."""
    reason: str
    """Why: ``prefix``, ``load``, ``session``, ``fallback`` or the policy's own word."""
    costs: Sequence[Cost] | None = None
    """The price of every candidate in the same order, where the policy has one."""
