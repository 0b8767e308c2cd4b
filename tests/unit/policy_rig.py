"""The built-in policies, candidates for them, and what they choose."""

from collections import Counter
from collections.abc import Sequence

from warmroute.policies.routing.base import Candidate, Policy, Query

BUILT_IN = (
    "cache_threshold",
    "expected_ttft",
    "explore_exploit",
    "least_requests",
    "least_tokens",
    "overlap_cost",
    "power_of_two",
    "prefix_hash",
    "random",
    "round_robin",
    "session",
    "weighted_scores",
)


def fleet(*requests: int) -> list[Candidate]:
    """Make candidates a, b, c ... with so many requests each."""
    return [
        Candidate(chr(97 + i), requests=count, decodes=count)
        for i, count in enumerate(requests)
    ]


def chosen(
    policy: Policy, candidates: Sequence[Candidate], times: int, query: Query
) -> Counter[str]:
    """Count how often each is chosen."""
    return Counter(
        candidates[policy.choose(query, candidates).index].name for _ in range(times)
    )
