"""Local attention: keep the newest tokens, and nothing else."""

from typing import ClassVar

import numpy as np

from warmroute.policies.eviction.token_base import Floats, Indices


class Window:
    """Evict the oldest token.

    "Local" in H2O, "window attention" in StreamingLLM. Without the first tokens a
    softmax has nowhere to put what it does not need, and models collapse (Xiao et
    al. 2024, section 3.1). Here for comparison.
    """

    __slots__ = ()
    name: ClassVar[str] = "window"
    is_observed: ClassVar[bool] = False

    def worth(self, positions: Indices, scores: Floats, incoming: int) -> Floats:
        """Return the positions: the newer, the worthier."""
        return positions.astype(np.float32)
