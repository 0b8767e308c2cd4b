"""StreamingLLM: attention sinks and a window.

Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks",
section 3.2. The paper numbers tokens by their place *in the cache* and turns the
keys anew at each step, so that distances never exceed what the model was trained
on. Here keys are stored after RoPE and keep the position they had in the sequence:
the sinks move away as the text grows. Below the model's context length this is
what it was trained on; beyond that only the paper's numbering would work.
"""

from typing import ClassVar

import numpy as np

from warmroute.policies.eviction.token_base import Floats, Indices, check_protected


class Sinks:
    """Keep the first *sinks* tokens for good, and the newest of the others.

    Args:
        capacity: Tokens that a row may keep.
        sinks: First tokens never evicted; 4 in the paper.

    Raises:
        PolicyError: The sinks leave no room for the incoming token.
    """

    __slots__ = ("_sinks",)
    name: ClassVar[str] = "sinks"
    is_observed: ClassVar[bool] = False

    def __init__(self, capacity: int, sinks: int = 4) -> None:
        check_protected(self.name, sinks, 1, capacity)
        self._sinks = sinks

    def worth(self, positions: Indices, scores: Floats, incoming: int) -> Floats:
        """Return the positions, and infinity for the sinks."""
        worth = positions.astype(np.float32)
        worth[positions < self._sinks] = np.inf
        return worth
