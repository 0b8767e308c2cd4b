"""Choose the longest match above a threshold, as the SGLang router does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Limits, Query
from warmroute.policies.routing.draw import draw_least
from warmroute.policies.routing.least_requests import draw_least_loaded


class CacheThreshold:
    """Choose the longest match if it is long enough and the loads are balanced.

    The rule of the SGLang router's policy ``cache_aware``, with the defaults of its
    command line (its Rust library has 0.5, 32 and 1.1). When the requests in flight
    differ by more than *balance_abs_threshold* and by more than the factor
    *balance_rel_threshold*, the fewest requests win. Otherwise the longest match
    wins where it is more than *cache_threshold* of the prompt, and the fewest
    requests where it is not, as in the newer releases; the older ones took the
    smallest prefix tree there. Two things are not copied: matches come from the view
    instead of a tree of texts that were sent, and ties are drawn at random instead
    of going to the first. O(candidates).

    Source: sgl-project/sglang, ``sgl-model-gateway/src/policies/cache_aware.rs`` and
    ``sgl-router/py_src/sglang_router/router_args.py``.
    """

    name = "cache_threshold"

    def __init__(
        self,
        *,
        cache_threshold: Annotated[
            float,
            Limits(0, 1),
            "share of the prompt that a match must exceed to be followed",
        ] = 0.3,
        balance_abs_threshold: Annotated[
            int,
            Limits(0, 1_000_000),
            "difference of requests in flight that counts as imbalance",
        ] = 64,
        balance_rel_threshold: Annotated[
            float,
            Limits(1, 1000),
            "ratio of requests in flight that counts, if the difference does, too",
        ] = 1.5,
        rng: Random | None = None,
    ) -> None:
        self.cache_threshold = cache_threshold
        self.balance_abs_threshold = balance_abs_threshold
        self.balance_rel_threshold = balance_rel_threshold
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose by match, unless loads differ too much or the match is short."""
        longest = max([one.matched_tokens for one in candidates])
        if longest > self.cache_threshold * query.prompt_tokens and not (
            self._is_imbalanced([one.requests for one in candidates])
        ):
            misses = [-one.matched_tokens for one in candidates]
            return Choice(draw_least(misses, self._rng), "prefix")
        return Choice(draw_least_loaded(candidates, self._rng), "load")

    def _is_imbalanced(self, requests: list[int]) -> bool:
        most, least = max(requests), min(requests)
        return (
            most - least > self.balance_abs_threshold
            and most > self.balance_rel_threshold * least
        )
