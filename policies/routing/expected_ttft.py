"""The default policy: the least expected cost in seconds, misses priced in."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Cost, Limits, Query
from warmroute.policies.routing.rates import SpeedClass

_Prices = tuple[list[Cost], int]  # of all candidates, and the place of the least
_MAX_HEAD_PROGRESS = 0.95


class ExpectedTtft:
    """Choose the backend where this request costs everybody the least time.

    cost = wait + (alpha + s * decodes) * uncached / rate + w * E[out] * itl

    with alpha = min(cap, 1 / (1 - rho)): a miss delays this request, those behind
    it, and the streams beside it. Extends TTFT-min of Mooncake (Qin et al. 2024,
    section 6) by the prices of a miss. O(candidates).
    """

    name = "expected_ttft"

    def __init__(
        self,
        *,
        stall_weight: Annotated[
            float,
            Limits(0, 10),
            "price of stopping one running stream, per second of prefill",
        ] = 0.04,
        decode_weight: Annotated[
            float,
            Limits(0, 10),
            "price of a second that this request will spend in decode",
        ] = 0.2,
        alpha_cap: Annotated[
            float,
            Limits(1, 1000),
            "most that a second of prefill may cost when the pool is full",
        ] = 20.0,
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
        self.tie_tolerance = tie_tolerance
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Price every candidate and choose the cheapest."""
        costs, best = self._price(query, candidates)
        index = self._draw_among_equals(costs, best, candidates)
        matched = candidates[index].matched_tokens
        if matched and matched == max([one.matched_tokens for one in candidates]):
            return Choice(index, "prefix", costs)
        return Choice(index, "load", costs)

    def _price(self, query: Query, candidates: Sequence[Candidate]) -> _Prices:
        now, prompt, alpha = query.now, query.prompt_tokens, self._alpha(query.rho)
        stall, best, least = self.stall_weight, 0, inf
        costs: list[Cost] = []
        speed: SpeedClass | None = None
        for one in candidates:
            if one.speed is not speed:
                speed = one.speed
                alone, per_request, per_token = self._decode_prices(query, speed)
            rate = one.rate
            backlog: float = one.prefill_tokens
            if backlog:
                since, newest = one.head_since, one.last_first_token
                if newest > since:
                    since = newest
                done = rate * (now - since)
                most = _MAX_HEAD_PROGRESS * one.head_tokens
                backlog = max(0.0, backlog - (done if done < most else most))
            wait = (backlog + one.queued_tokens) / rate
            uncached = prompt - one.matched_tokens
            if uncached < 0:
                uncached = 0
            miss = (alpha + stall * one.decodes) * uncached / rate
            decode = alone + per_request * one.requests + per_token * one.context_tokens
            total = wait + miss + decode
            if total < least:
                best, least = len(costs), total
            costs.append((wait, miss, decode, total))
        return costs, best

    def _decode_prices(
        self, query: Query, speed: SpeedClass
    ) -> tuple[float, float, float]:
        """Price the decode of this request alone, a request and a token beside it."""
        tokens = self.decode_weight * query.output_tokens
        scaled = tokens * speed.scale
        alone = tokens * speed.itl_s(1, query.prompt_tokens)
        return alone, scaled * speed.request_s, scaled * speed.token_s

    def _alpha(self, rho: float) -> float:
        return min(self.alpha_cap, 1.0 / (1.0 - rho)) if rho < 1.0 else self.alpha_cap

    def _draw_among_equals(
        self, costs: Sequence[Cost], best: int, candidates: Sequence[Candidate]
    ) -> int:
        """Draw from the ties; noise in learned speeds alone breaks none."""
        wait, miss, _, least = costs[best]
        limit = least + self.tie_tolerance * (wait + miss)
        near = [index for index, cost in enumerate(costs) if cost[3] <= limit]
        if len(near) == 1:
            return best
        first = candidates[best]
        equal = [
            index
            for index in near
            if costs[index][3] == least
            or (
                candidates[index].matched_tokens == first.matched_tokens
                and candidates[index].requests == first.requests
            )
        ]
        return self._rng.choice(equal)
