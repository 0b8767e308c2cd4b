"""The ways to live within a budget that the bench compares."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from attending import Attending, Dense, Evicting
from fetching import Fetches, Fetching

from warmroute.policies.eviction.h2o import H2O
from warmroute.policies.eviction.infinigen import InfiniGen
from warmroute.policies.eviction.sinks import Sinks
from warmroute.policies.eviction.window import Window

METHODS = ("full", "window", "sinks", "h2o", "exact", "infinigen")
"""``exact`` fetches by the true scores: what no speculation can better."""


@dataclass(frozen=True)
class Setting:
    """Hold what a method is tried with.

    Args:
        method: One of `METHODS`.
        budget: Tokens a KV head.
        alpha: InfiniGen's distance to the largest score.
        pool: Capacity and victims of its host pool, None for no limit.
    """

    method: str
    budget: int
    alpha: float = np.inf
    pool: tuple[int, str] | None = None

    def attention(self, kv_heads: int, fetches: Fetches) -> Callable[[], Attending]:
        """Return what makes the attention of each layer."""
        budget = self.budget
        match self.method:
            case "full":
                return Dense
            case "window":
                return lambda: Evicting(Window(), budget)
            case "sinks":
                return lambda: Evicting(Sinks(budget), budget)
            case "h2o":
                return lambda: Evicting(H2O(budget), budget)
        guessing = self.method == "infinigen"
        rule = InfiniGen(self.alpha if guessing else np.inf)
        cap = budget - 1  # the newest token is there without being fetched
        return lambda: Fetching(rule, cap, kv_heads, fetches, guessing, self.pool)
