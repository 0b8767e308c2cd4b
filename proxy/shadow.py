"""A second policy that decides beside the first, and acts on nothing."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from warmroute.policies.errors import PolicyError
from warmroute.policies.routing.base import (
    Candidate,
    Choice,
    Cost,
    Costs,
    Policy,
    Query,
)
from warmroute.policies.routing.pricing import expected_ttft_s
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision

logger = logging.getLogger(__name__)

NOTE: Final = (
    "counterfactual: the shadow was asked about caches and queues that the first "
    "policy had made. On its own it would have filled other caches and made other "
    "queues, so this says where it would have decided otherwise, not what it would "
    "have achieved. Figures are sums over requests; expected_ttft_s is wait plus own "
    "prefill by the learned rates, for both alike, whatever the policies themselves "
    "price. To compare whole policies, replay the trace: warmroute replay"
)


class Shadow:
    """Ask a policy of its own about each request, and sum up the difference.

    It sees the same numbers as the first policy, in the same step. What it raises is
    counted and logged once, and harms nobody.

    Args:
        policy: Asked; not shared with anybody, so its state is its own.
        ledger: Counts its exceptions.
    """

    __slots__ = (
        *("_has_failed", "_ledger", "agreed", "matched", "policy", "requests"),
        "ttft_s",
    )

    def __init__(self, policy: Policy, ledger: Ledger) -> None:
        self.policy = policy
        self._ledger = ledger
        self._has_failed = False
        self.requests = 0
        self.agreed = 0
        self.matched = [0, 0]
        """Tokens cached where the first policy and where the shadow sent it."""
        self.ttft_s = [0.0, 0.0]
        """Expected seconds to the first token, likewise."""

    def __repr__(self) -> str:
        return f"<Shadow {self.policy.name} agreed {self.agreed}/{self.requests}>"

    def judge(
        self, query: Query, candidates: Sequence[Candidate], decision: Decision
    ) -> None:
        """Ask about one request, and note the answer in its record; never raises."""
        try:
            choice = self.policy.choose(query, candidates)
            if not 0 <= choice.index < len(candidates):
                raise PolicyError(
                    f"policy {self.policy.name} chose candidate {choice.index} of "
                    f"{len(candidates)}"
                )
            decision.shadow = (self.policy.name, choice.index, _cost(choice))
        except Exception:
            self._fail()
            return
        self.requests += 1
        self.agreed += choice.index == decision.index
        for side, index in enumerate((decision.index, choice.index)):
            self.matched[side] += decision.matched[index]
            self.ttft_s[side] += expected_ttft_s(query, candidates[index])

    def facts(self) -> dict[str, Any]:
        """Return what ``/api/state`` shows."""
        sides = ("first", "shadow")
        return {
            "policy": self.policy.name,
            "requests": self.requests,
            "agreed": self.agreed,
            "expected_ttft_s": dict(zip(sides, self.ttft_s, strict=True)),
            "matched_tokens": dict(zip(sides, self.matched, strict=True)),
            "note": NOTE,
        }

    def _fail(self) -> None:
        self._ledger.policy_failed(self.policy.name)
        if not self._has_failed:
            self._has_failed = True
            logger.exception("shadow_failed", extra={"policy": self.policy.name})


def _cost(choice: Choice) -> Cost | None:
    costs, index = choice.costs, choice.index
    if costs is None:
        return None
    if type(costs) is Costs:
        wait, miss, decode, total = costs.flat[4 * index : 4 * index + 4]
        return wait, miss, decode, total
    wait, miss, decode, total = costs[index]
    return wait, miss, decode, total
