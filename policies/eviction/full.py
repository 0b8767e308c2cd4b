"""Full cache: evict nothing. The trivial rule, and the yardstick."""

from typing import ClassVar

from warmroute.policies.errors import PolicyError
from warmroute.policies.eviction.token_base import Floats, Indices


class Full:
    """Keep every token; the budget must hold the whole sequence."""

    __slots__ = ()
    name: ClassVar[str] = "full"
    is_observed: ClassVar[bool] = False

    def worth(self, positions: Indices, scores: Floats, incoming: int) -> Floats:
        """Refuse: nothing is ever evicted."""
        raise PolicyError(
            f"no room for token {incoming}: full keeps all {positions.shape[1]} "
            "tokens of its budget; raise the budget or choose a rule that evicts"
        )
