"""Keep a session on one backend, unless that backend has too much to do."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Annotated

from xxhash import xxh3_64_intdigest

from warmroute.policies.routing.base import Candidate, Choice, Limits, Query
from warmroute.policies.routing.least_requests import draw_least_loaded


class Session:
    """Send each session to its own backend by consistent hashing, loads bounded.

    The backends are ranked for a session by the hash of both names (rendezvous
    hashing, Thaler and Ravishankar 1998), so that one that comes or goes moves
    only the sessions it wins or had. The first in rank with room takes the
    request; room is *bound* times the mean of requests (Mirrokni, Thorup and
    Zadimoghaddam 2018, "Consistent Hashing with Bounded Loads"). A request
    without a session key goes to the backend with the fewest requests.
    O(candidates).
    """

    name = "session"

    def __init__(
        self,
        *,
        bound: Annotated[
            float,
            Limits(1, 1000),
            "most requests on one backend, as a multiple of the mean",
        ] = 1.25,
        rng: Random | None = None,
    ) -> None:
        self.bound = bound
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the session's backend, or the next in rank that has room."""
        if not query.session:
            return Choice(draw_least_loaded(candidates, self._rng), "load")
        key = xxh3_64_intdigest(query.session.encode("utf-8", "surrogatepass"))
        ranks = [xxh3_64_intdigest(one.name.encode(), key) for one in candidates]
        home = ranks.index(max(ranks))
        room = self._room(candidates)
        if candidates[home].requests < room:
            return Choice(home, "session")
        open_to = [i for i, one in enumerate(candidates) if one.requests < room]
        return Choice(max(open_to, key=ranks.__getitem__), "load")

    def _room(self, candidates: Sequence[Candidate]) -> int:
        requests = sum([one.requests for one in candidates])
        return ceil(self.bound * (requests + 1) / len(candidates))
