"""What a token budget is: how many tokens are kept, and by which rule."""

import math
from dataclasses import dataclass
from typing import Literal

from warmroute.policies.errors import ClientError
from warmroute.policies.eviction.full import Full
from warmroute.policies.eviction.h2o import H2O
from warmroute.policies.eviction.host_pool import POOL_RULES
from warmroute.policies.eviction.sinks import Sinks
from warmroute.policies.eviction.token_base import TokenRule
from warmroute.policies.eviction.window import Window
from warmroute.policies.registry import explain_unknown

Method = Literal["full", "h2o", "infinigen", "sinks", "window"]

METHODS: tuple[Method, ...] = ("full", "h2o", "infinigen", "sinks", "window")
"""The ways to keep within a budget; ``full`` has none."""

LEAST_TOKENS = 8
"""The smallest budget."""

STREAMING_SINKS = 4
"""Sinks of the method ``sinks`` when none are given, as in its paper."""


class BudgetRefused(ClientError):
    """A token budget makes no sense; the client is told which field and why."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(400, "invalid_kv_budget", f"kv_budget.{field}: {message}")
        self.param = f"kv_budget.{field}"


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """Say how many tokens a KV head keeps after the prefill, and which.

    Args:
        method: ``full`` keeps all; ``window`` the newest; ``sinks`` the first and
            the newest; ``h2o`` those that received most attention and the newest;
            ``infinigen`` all in host memory, and fetches for each step what it
            speculates to matter.
        tokens: Budget in tokens, 8 or more; not with *share*.
        share: Budget as a share of the prompt, above 0 and up to 1.
        sinks: First tokens never evicted (``sinks``: 4 if None, ``h2o``: none).
        recent: Newest tokens that ``h2o`` never evicts; half the budget if None.
        alpha: How far below the largest speculated score ``infinigen`` fetches.
        partial: Share of each head that ``infinigen`` speculates with.
        host_tokens: Most tokens that ``infinigen`` holds in host memory; all of
            them if None.
        victims: Which one leaves a full host memory: ``counter``, ``fifo``, ``lru``.

    Raises:
        BudgetRefused: A field is out of range or does not go with the method.
    """

    method: Method
    tokens: int | None = None
    share: float | None = None
    sinks: int | None = None
    recent: int | None = None
    alpha: float = 10.0
    partial: float = 0.5
    host_tokens: int | None = None
    victims: str = "counter"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BudgetRefused(
                "method", explain_unknown("method", str(self.method), METHODS)
            )
        self._check_size()
        self._check_protected()
        self._check_host()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is ever evicted."""
        return self.method == "full"

    @property
    def is_observed(self) -> bool:
        """Whether the attention received during the prefill is needed."""
        return self.method == "h2o" or self.host_tokens is not None

    def budget(self, num_prompt: int, num_total: int) -> int:
        """Return the budget in tokens of a sequence.

        Args:
            num_prompt: Tokens computed when the budget begins.
            num_total: Most tokens that the sequence can ever have.
        """
        if self.tokens is not None:
            return self.tokens
        if self.share is not None:
            return max(self._least, math.ceil(self.share * num_prompt))
        return num_total

    def rule(self, budget: int) -> TokenRule:
        """Make the rule that keeps a row within *budget* tokens; not infinigen's."""
        sinks = self._sinks
        match self.method:
            case "window":
                return Window()
            case "sinks":
                return Sinks(budget, sinks)
            case "h2o":
                return H2O(budget, sinks, self.recent)
        return Full()

    @property
    def _sinks(self) -> int:
        if self.sinks is not None:
            return self.sinks
        return STREAMING_SINKS if self.method == "sinks" else 0

    @property
    def _least(self) -> int:
        """The smallest budget that protects what is asked for and still evicts."""
        recent = 1 if self.recent is None else self.recent
        return max(LEAST_TOKENS, 2 * self._sinks, self._sinks + max(1, recent))

    def _check_size(self) -> None:
        if (self.tokens is None) == (self.share is None) and not self.is_whole:
            given = "neither is" if self.tokens is None else "both are"
            raise BudgetRefused("tokens", f"give either tokens or share; {given} given")
        if self.is_whole and (self.tokens, self.share) != (None, None):
            raise BudgetRefused(
                "tokens",
                "a budget for method 'full', which keeps every token; leave "
                "tokens and share out",
            )
        if self.share is not None and not 0 < self.share <= 1:
            raise BudgetRefused("share", f"{self.share} (allowed: above 0, up to 1)")

    def _check_protected(self) -> None:
        for field, allowed in (("sinks", ("sinks", "h2o")), ("recent", ("h2o",))):
            value = getattr(self, field)
            if value is not None and (value < 0 or self.method not in allowed):
                raise BudgetRefused(
                    field,
                    f"{value} with method {self.method!r} (allowed: 0 or more, "
                    f"with {' or '.join(allowed)})",
                )
        if self.tokens is not None and self.tokens < self._least:
            raise BudgetRefused(
                "tokens", f"{self.tokens} (allowed here: {self._least} or more)"
            )

    def _check_host(self) -> None:
        if self.method != "infinigen" and self.host_tokens is not None:
            raise BudgetRefused(
                "host_tokens",
                f"{self.host_tokens} with method {self.method!r} (allowed: with "
                "infinigen, which alone uses host memory)",
            )
        if not self.alpha >= 0:
            raise BudgetRefused("alpha", f"{self.alpha} (allowed: 0 or more)")
        if not 0 < self.partial <= 1:
            raise BudgetRefused(
                "partial", f"{self.partial} (allowed: above 0, up to 1)"
            )
        if self.victims not in POOL_RULES:
            raise BudgetRefused(
                "victims", explain_unknown("choice", self.victims, POOL_RULES)
            )
        if self.host_tokens is not None and self.host_tokens < LEAST_TOKENS:
            raise BudgetRefused(
                "host_tokens", f"{self.host_tokens} (allowed: {LEAST_TOKENS} or more)"
            )
