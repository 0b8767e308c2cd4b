"""Choose the highest weighted sum of scores, as llm-d does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Limits, Query
from warmroute.policies.routing.draw import draw_least, name_reason


class WeightedScores:
    """Choose the highest weighted sum of prefix, queue and KV cache scores.

    The scorers of llm-d's router, each from 0 to 1, with the weights 3, 2 and 2 of
    its guides. Prefix: matched share of the prompt. Queue: requests without a first
    token, from 1 for the fewest among the candidates to 0 for the most; 1 for all
    when they are equal. KV: 1 less the usage of the pool; 0 where it is not told.
    Ties at random. Two things are not copied: the queue is counted from our own
    requests and not read from the engines' metrics, so it is never late, and the
    scorer ``no-hit-lru`` that newer guides add. O(candidates).

    Source: llm-d/llm-d, ``guides/precise-prefix-cache-routing``; llm-d/llm-d-router,
    ``pkg/epp/framework/plugins/scheduling/scorer``: ``prefix``, ``queuedepth``,
    ``kvcacheutilization``.
    """

    name = "weighted_scores"

    def __init__(
        self,
        *,
        prefix_weight: Annotated[
            float, Limits(0, 1000), "weight of the matched share of the prompt"
        ] = 3.0,
        queue_weight: Annotated[
            float, Limits(0, 1000), "weight of the shortness of the queue"
        ] = 2.0,
        kv_weight: Annotated[
            float, Limits(0, 1000), "weight of the free share of the KV cache"
        ] = 2.0,
        rng: Random | None = None,
    ) -> None:
        self.prefix_weight = prefix_weight
        self.queue_weight = queue_weight
        self.kv_weight = kv_weight
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the candidate with the highest sum."""
        queues = [one.requests - one.decodes for one in candidates]
        longest = max(queues)
        spread = longest - min(queues)
        costs = []
        for one, queue in zip(candidates, queues, strict=True):
            score = self.prefix_weight * _matched_share(query, one)
            score += self.queue_weight * ((longest - queue) / spread if spread else 1.0)
            if one.kv_usage is not None:
                score += self.kv_weight * (1.0 - one.kv_usage)
            costs.append(-score)
        index = draw_least(costs, self._rng)
        return Choice(index, name_reason(index, candidates))


def _matched_share(query: Query, one: Candidate) -> float:
    if query.prompt_tokens <= 0:
        return 0.0
    return min(1.0, one.matched_tokens / query.prompt_tokens)
