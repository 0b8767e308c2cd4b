"""Keep prompts that begin alike on one backend, unless it has too much to do."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated, Final

from warmroute.policies.routing.base import Candidate, Choice, Limits, Query
from warmroute.policies.routing.least_requests import draw_least_loaded
from warmroute.policies.routing.rendezvous import Bound, choose_home

_KEY_BITS: Final = 2**64 - 1


class PrefixHash:
    """Send prompts that begin alike to one backend by consistent hashing.

    The key is the hash of the first blocks, *prefix_tokens* together; of a shorter
    prompt, that of its full blocks. Loads are bounded: see `choose_home`. It needs
    no view of the caches. A prompt without a full block goes to the backend with
    the fewest requests. O(candidates).
    """

    name = "prefix_hash"

    def __init__(
        self,
        *,
        prefix_tokens: Annotated[
            int,
            Limits(1, 1_000_000),
            "tokens at the start of a prompt that choose its backend, in whole blocks",
        ] = 1024,
        bound: Bound = 1.25,
        rng: Random | None = None,
    ) -> None:
        self.prefix_tokens = prefix_tokens
        self.bound = bound
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the prefix's backend, or the next in rank that has room."""
        blocks = query.blocks
        if not blocks:
            return Choice(draw_least_loaded(candidates, self._rng), "load")
        wanted = int(self.prefix_tokens / max(1.0, query.block_tokens))
        key = blocks[min(max(1, wanted), len(blocks)) - 1] & _KEY_BITS
        return choose_home(key, candidates, self.bound, "hash")
