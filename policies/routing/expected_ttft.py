"""The default policy: the least expected cost in seconds, misses priced in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Limits, Query
from warmroute.policies.routing.pricing import choose_cheapest


class ExpectedTtft:
    """Choose the backend where this request costs everybody the least time.

    cost = wait + miss + (alpha - 1 + s * decodes) * miss of the class
           + w * E[out] * itl                       miss = g * uncached / rate

    with alpha = min(cap, 1 / (1 - rho)): a miss delays this request, those behind
    it, and the streams beside it. g is what a token of this miss takes over what the
    tokens took that the rate was learned of: 1 plus the depth of its middle in the
    prompt, in units of *attention_tokens*, over the same of their mean depth.

    No wrong rate may move much. What a miss costs the others, up to alpha_cap times
    itself, counts at the rate of the class: a token of work is one less for the pool,
    whoever computes it. What this request waits for counts at the geometric mean of
    both rates. The other half of a true difference shows by itself, because the
    queue of a slower backend is longer.

    Extends TTFT-min of Mooncake (Qin et al. 2024, section 6) by the prices of a miss.
    O(candidates).
    """

    name = "expected_ttft"

    def __init__(
        self,
        *,
        stall_weight: Annotated[
            float,
            Limits(0, 10),
            "price of stopping one running stream, per second of prefill",
        ] = 0.06,
        decode_weight: Annotated[
            float,
            Limits(0, 10),
            "price of a second that this request will spend in decode",
        ] = 0.1,
        alpha_cap: Annotated[
            float,
            Limits(1, 1000),
            "most that a second of prefill may cost when the pool is full",
        ] = 20.0,
        attention_tokens: Annotated[
            float,
            Limits(0, 1e9),
            "context at which attending to it doubles the price of a token; 0: never",
        ] = 30_000.0,
        tie_tolerance: Annotated[
            float,
            Limits(0, 1),
            "equal backends whose learned speeds differ by less are drawn at random",
        ] = 0.02,
        rng: Random | None = None,
    ) -> None:
        self.stall_weight = stall_weight
        self.decode_weight = decode_weight
        self.alpha_cap = alpha_cap
        self.attention_tokens = attention_tokens
        self.tie_tolerance = tie_tolerance
        self._draw = (rng or Random()).random

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Price every candidate and choose the cheapest."""
        return choose_cheapest(
            query,
            candidates,
            self.stall_weight,
            self.decode_weight,
            self.alpha_cap,
            self.attention_tokens,
            self.tie_tolerance,
            self._draw,
        )
