"""The cost of a block that enters the prefix index."""

from dataclasses import dataclass
from typing import Final

from warmroute.policies.kv.blocks import hash_text
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.bench.timing import cpu_us

_BLOCKS: Final = 256
_PROMPTS: Final = 40
_TEXT_BLOCK: Final = 256


@dataclass(frozen=True, slots=True)
class IngestCost:
    """What a block takes.

    Attributes:
        us: Microseconds of CPU a new block, of prompts of 256 blocks.
        dict_us: Of the same blocks put into a plain dict.
    """

    us: float
    dict_us: float


def ingest_cost(reps: int) -> IngestCost:
    """Measure the index, and a dict with the same blocks in the same order."""
    stamps = iter(range(10**9))
    index = PrefixIndex(2**30)
    holder = index.add_holder("a")
    plain: dict[int, float] = {}
    seeds = iter(range(1, 10**9))
    best = best_plain = float("inf")
    for _ in range(reps):
        prompts = [
            hash_text(bytes(_TEXT_BLOCK * _BLOCKS), next(seeds))
            for _ in range(_PROMPTS)
        ]
        fresh, again = iter(prompts), iter(prompts)
        us = cpu_us(
            lambda fresh=fresh: index.insert(  # type: ignore[misc]
                holder, next(fresh), 16, float(next(stamps))
            ),
            _PROMPTS,
            1,
        )
        plain_us = cpu_us(lambda again=again: _enter(plain, next(again)), _PROMPTS, 1)  # type: ignore[misc]
        best, best_plain = min(best, us), min(best_plain, plain_us)
    return IngestCost(best / _BLOCKS, best_plain / _BLOCKS)


def _enter(plain: dict[int, float], hashes: list[int]) -> None:
    for one in hashes:
        plain[one] = 1.0
