"""Choose the least weighted sum of prefill and decode load, as Dynamo does."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from typing import Annotated, Final

from warmroute.policies.registry import explain_unknown
from warmroute.policies.routing.base import Candidate, Choice, Limits, Query
from warmroute.policies.routing.draw import draw_least, name_reason

_FORMS: Final = ("linear", "lmetric")
_BLOCK_TOKENS: Final = 16


class OverlapCost:
    """Choose the least *overlap_weight* x prefill + decode load, in blocks.

    The rule of NVIDIA Dynamo's KV router with its defaults. Prefill load is the
    uncached tokens of our requests without a first token, in full until then, and
    of this one; decode load is the prompts of all our requests and this one. The
    form ``lmetric`` is Dynamo's *router_selection_policy* of that name, prefill x
    (decode + 1 block), after Zhang et al. 2026, "Simple is Better", arXiv:2603.15202.
    With a *temperature* the choice is drawn by softmax over the costs, scaled to
    their range; without, the least cost wins, ties at random. One thing is not
    copied: Dynamo counts a block that running requests share once. O(candidates).

    Source: ai-dynamo/dynamo, ``docs/components/router/router_guide.md``,
    ``router-concepts.md`` and ``lib/kv-router/src/scheduling/selector/default.rs``.
    """

    name = "overlap_cost"

    def __init__(
        self,
        *,
        overlap_weight: Annotated[
            float,
            Limits(0, 1000),
            "price of a block to prefill, in blocks of decode load; form linear only",
        ] = 1.0,
        temperature: Annotated[
            float,
            Limits(0, 1000),
            "randomness of the choice; 0 takes the least cost",
        ] = 0.0,
        form: Annotated[
            str, "`linear`: weighted sum; `lmetric`: product of prefill and decode"
        ] = "linear",
        rng: Random | None = None,
    ) -> None:
        if form not in _FORMS:
            raise ValueError(f"form: {explain_unknown('form', form, _FORMS)}")
        self.overlap_weight = overlap_weight
        self.temperature = temperature
        self.form = form
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the least cost, or draw by it."""
        costs = [self._cost(query, one) for one in candidates]
        if self.temperature > 0.0:
            index = self._sample(costs)
        else:
            index = draw_least(costs, self._rng)
        return Choice(index, name_reason(index, candidates))

    def _cost(self, query: Query, one: Candidate) -> float:
        prompt = query.prompt_tokens
        prefill = max(0, one.prefill_tokens + prompt - one.matched_tokens)
        decode = one.context_tokens + prompt
        if self.form == "lmetric":
            return float(prefill * (decode + _BLOCK_TOKENS))
        return self.overlap_weight * prefill + decode

    def _sample(self, costs: list[float]) -> int:
        least = min(costs)
        # Scaled to the range first: a tiny temperature then makes no infinities.
        scale = (max(costs) - least) or 1.0
        weights = [exp(-(cost - least) / scale / self.temperature) for cost in costs]
        return self._rng.choices(range(len(costs)), weights)[0]
