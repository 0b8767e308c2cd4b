"""The scheduler's side: which blocks go, by the attention that they receive."""

import logging
from collections.abc import Mapping, Sequence
from typing import cast

from warmroute.adapters.vllm.plugin.names import MASSES
from warmroute.adapters.vllm.plugin.ports import Workers

logger = logging.getLogger(__name__)


def ask_masses(
    workers: Workers | None, names: Sequence[str]
) -> Mapping[str, Sequence[float]]:
    """Ask the worker what the blocks of these requests receive.

    Whatever goes wrong, the answer is empty, and the oldest blocks go.
    """
    if workers is None or not names:
        return {}
    try:
        answers = workers.collective_rpc(MASSES, args=(list(names),))
    except Exception:
        logger.exception("warmroute: the worker cannot be asked about attention")
        return {}
    return cast(Mapping[str, Sequence[float]], answers[0])


def least_wanted(
    blocks: Sequence[int], count: int, masses: Sequence[float]
) -> Sequence[int]:
    """Choose the blocks that receive least; the oldest of equals.

    A block of which nothing is known receives nothing. O(n log n) in the blocks.
    """
    known = len(masses)

    def received(at: int) -> float:
        return masses[at] if at < known else 0.0

    return sorted(blocks, key=received)[:count]
