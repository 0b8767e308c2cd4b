"""Where a request of a replay would go."""

from collections.abc import Sequence
from typing import NamedTuple

from warmroute.policies.routing.base import Candidate


class Intent(NamedTuple):
    """Where a request would go, with nothing reserved.

    Attributes:
        engine: Its number.
        candidate: What the policy knows of it.
        matched: Tokens that each candidate is believed to have cached.
        uncached_tokens: What is to be computed of the prompt there.
    """

    engine: int
    candidate: Candidate
    matched: Sequence[int]
    uncached_tokens: int
