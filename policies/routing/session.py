"""Keep a session on one backend, unless that backend has too much to do."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from xxhash import xxh3_64_intdigest

from warmroute.policies.routing.base import Candidate, Choice, Query
from warmroute.policies.routing.least_requests import draw_least_loaded
from warmroute.policies.routing.rendezvous import Bound, choose_home


class Session:
    """Send each session to its own backend by consistent hashing, loads bounded.

    See `choose_home`. A request without a session key goes to the backend with the
    fewest requests. O(candidates).
    """

    name = "session"

    def __init__(
        self,
        *,
        bound: Bound = 1.25,
        rng: Random | None = None,
    ) -> None:
        self.bound = bound
        self._rng = rng or Random()

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose the session's backend, or the next in rank that has room."""
        if not query.session:
            return Choice(draw_least_loaded(candidates, self._rng), "load")
        key = xxh3_64_intdigest(query.session.encode("utf-8", "surrogatepass"))
        return choose_home(key, candidates, self.bound, "session")
