"""The contract of token eviction inside a sequence.

A *row* is one KV head of one layer of one sequence; every row keeps its own tokens,
and all rows of a call have the same number of them. The rules are pure: they say
what a token is worth, and `KeptTokens` keeps the books.
"""

from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from warmroute.policies.errors import PolicyError

Floats: TypeAlias = NDArray[np.float32]
Indices: TypeAlias = NDArray[np.int64]


class TokenRule(Protocol):
    """Say what each kept token is worth; the least worthy is evicted first."""

    name: ClassVar[str]
    """The name under which it is configured."""
    is_observed: ClassVar[bool]
    """Whether the worth depends on the attention that tokens received."""

    def worth(self, positions: Indices, scores: Floats, incoming: int) -> Floats:
        """Return what the tokens are worth; infinite for those never evicted.

        Mutates nothing, never blocks; O(rows * tokens).

        Args:
            positions: ``[rows, tokens]``, where in the sequence each token stands.
            scores: ``[rows, tokens]``, attention received so far.
            incoming: Position of the token for which room is made.

        Returns:
            ``[rows, tokens]``.

        Raises:
            PolicyError: The rule evicts nothing.
        """
        ...


def check_protected(rule: str, sinks: int, recent: int, capacity: int) -> None:
    """Refuse a rule that protects so many tokens that none can be evicted.

    Args:
        rule: Name of the rule.
        sinks: First tokens never evicted.
        recent: Newest tokens never evicted, the incoming one included.
        capacity: Tokens that a row may keep.

    Raises:
        PolicyError: A number is negative, or nothing is left to evict.
    """
    if sinks < 0 or recent < 0 or sinks + max(1, recent) > capacity:
        raise PolicyError(
            f"{rule} protects {sinks} sinks and {recent} recent tokens of a budget of "
            f"{capacity} (allowed: together at most the budget, and room for the new "
            "token); protect fewer or raise the budget"
        )
