"""The default policy: the least expected cost in seconds, misses priced in."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Costs, Limits, Query
from warmroute.policies.routing.rates import SpeedClass

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
        now, prompt, rho = query.now, query.prompt_tokens, query.rho
        stall, alpha = self.stall_weight, self.alpha_cap
        if rho < 1.0 and alpha * (1.0 - rho) > 1.0:
            alpha = 1.0 / (1.0 - rho)
        flat: list[float] = []
        least = second = inf
        best, near, longest = 0, 0.0, 0
        speed: SpeedClass | None = None
        # One loop without calls, which skips what is zero: the dearest of a decision.
        for one in candidates:
            if one.speed is not speed:
                speed = one.speed
                alone, per_request, per_token = self._decode_prices(query, speed)
            rate, matched = one.rate, one.matched_tokens
            backlog: float = one.prefill_tokens
            if backlog:
                since, newest = one.head_since, one.last_first_token
                if newest > since:
                    since = newest
                done = rate * (now - since)
                most = _MAX_HEAD_PROGRESS * one.head_tokens
                backlog -= done if done < most else most
                if backlog < 0.0:
                    backlog = 0.0
            backlog += one.queued_tokens
            wait = backlog / rate if backlog else 0.0
            price = alpha
            if one.decodes:
                price += stall * one.decodes
            if matched > longest:
                longest = matched
            miss = price * (prompt - matched) / rate if matched < prompt else 0.0
            decode = alone + per_request * one.requests + per_token * one.context_tokens
            total = wait + miss + decode
            if total < least:
                second, least, near, best = least, total, wait + miss, len(flat)
            elif total < second:
                second = total
            flat += (wait, miss, decode, total)
        index = best // 4
        limit = least + self.tie_tolerance * near
        if second <= limit:
            index = self._draw_among_equals(index, flat[3::4], limit, candidates)
        matched = candidates[index].matched_tokens
        reason = "prefix" if matched and matched == longest else "load"
        return Choice(index, reason, Costs(flat))

    def _decode_prices(
        self, query: Query, speed: SpeedClass
    ) -> tuple[float, float, float]:
        """Price the decode of this request alone, a request and a token beside it."""
        scaled = self.decode_weight * query.output_tokens * speed.scale
        per_request, per_token = scaled * speed.request_s, scaled * speed.token_s
        alone = scaled * speed.base_s + per_request + per_token * query.prompt_tokens
        return alone, per_request, per_token

    def _draw_among_equals(
        self,
        best: int,
        totals: Sequence[float],
        limit: float,
        candidates: Sequence[Candidate],
    ) -> int:
        """Draw from the ties; noise in learned speeds alone breaks none."""
        least, first = totals[best], candidates[best]
        matched, requests = first.matched_tokens, first.requests
        equal = []
        for index, total in enumerate(totals):
            if total <= limit:
                one = candidates[index]
                if total == least or (
                    one.matched_tokens == matched and one.requests == requests
                ):
                    equal.append(index)
        # A tenth of the time of choice(), and even enough for so few.
        return equal[int(self._rng.random() * len(equal))]
