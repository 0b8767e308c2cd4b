"""Rendezvous hashing with bounded loads: a home for a key, unless it is full."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated

from xxhash import xxh3_64_intdigest

from warmroute.policies.routing.base import Candidate, Choice, Limits

Bound = Annotated[
    float, Limits(1, 1000), "most requests on one backend, as a multiple of the mean"
]
"""How full a home may be, as an option of a policy."""


def choose_home(
    key: int, candidates: Sequence[Candidate], bound: float, reason: str
) -> Choice:
    """Choose the home of *key*, or the next in its rank that has room.

    The candidates are ranked by the hash of their name and the key, so that one
    that comes or goes moves only the keys it wins or had (Thaler and Ravishankar
    1998). One has room while its requests are under *bound* times the mean
    (Mirrokni, Thorup and Zadimoghaddam 2018). O(candidates).

    Args:
        key: 64 bits, unsigned.
        candidates: At least one.
        bound: At least 1.
        reason: The word for a choice of the home; any other is ``load``.
    """
    ranks = [xxh3_64_intdigest(one.name.encode(), key) for one in candidates]
    home = ranks.index(max(ranks))
    requests = sum([one.requests for one in candidates])
    room = ceil(bound * (requests + 1) / len(candidates))
    if candidates[home].requests < room:
        return Choice(home, reason)
    open_to = [i for i, one in enumerate(candidates) if one.requests < room]
    return Choice(max(open_to, key=ranks.__getitem__), "load")
