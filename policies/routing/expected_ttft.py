"""The default policy: the least expected cost in seconds, misses priced in."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Costs, Limits, Query
from warmroute.policies.routing.pricing import price


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
        flat, least, second = price(
            query, candidates, self.stall_weight, self.decode_weight, self.alpha_cap
        )
        totals = flat[3::4]
        index = totals.index(least)
        limit = least + self.tie_tolerance * (flat[4 * index] + flat[4 * index + 1])
        if second <= limit:
            index = self._draw_among_equals(index, totals, limit, candidates)
        matched, reason = candidates[index].matched_tokens, "load"
        if matched:
            reason = "prefix"
            for one in candidates:
                if one.matched_tokens > matched:
                    reason = "load"
                    break
        return Choice(index, reason, Costs(flat))

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
