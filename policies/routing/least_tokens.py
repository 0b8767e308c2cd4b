"""Choose the backend with the least prefill before it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from warmroute.policies.routing.base import Candidate, Choice, Query
from warmroute.policies.routing.draw import draw_least
from warmroute.policies.routing.pricing import backlog_tokens


class LeastTokens:
    """Choose the backend with the fewest uncached tokens left to prefill.

    Counted are our requests without a first token, less what the oldest of them
    has surely got done, what the engine reports as queued by others, and, with
    *own*, what this request itself would have to compute there. Without *own* it
    knows nothing of caches. Ties at random. O(candidates).
    """

    name = "least_tokens"

    def __init__(
        self,
        *,
        own: Annotated[
            bool, "count the uncached tokens of the request itself as well"
        ] = False,
        rng: Random | None = None,
    ) -> None:
        self.own = own
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the candidate with the fewest tokens, by count and not by time."""
        tokens = [backlog_tokens(one, query.now) for one in candidates]
        if self.own:
            prompt = query.prompt_tokens
            for index, one in enumerate(candidates):
                tokens[index] += max(0, prompt - one.matched_tokens)
        return Choice(draw_least(tokens, self._rng), "load")
