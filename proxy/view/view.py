"""What each backend has cached, as far as the proxy can know.

The mirror grade: the view of a backend is what was sent to it, least recently used
first out, bounded by a learned capacity. What keeps it consistent:

- A prompt enters at dispatch, under a stamp of its own, so that a burst of equal
  prompts finds the first one's blocks before its answer has begun. When nothing comes
  of the dispatch, exactly those blocks go again that nobody has used since.
- The first byte of the answer confirms the blocks and makes them newest, as engines
  do when they free a request's blocks.
- A report of fewer cached tokens than promised means that blocks had been evicted.
  The prompt itself is cached again by then, for the engine has just computed it; so
  what goes is everything older behind the shortfall, and the learned capacity shrinks
  when it happens again. A report of more makes it grow.
- Of an engine that announces its blocks, only what requests in flight hold or are
  about to compute is entered here, under a tier of its own, and goes again with the
  request: by then the engine has announced it. Prompts that are known as text alone
  are mirrored in that tier, for no event speaks of text. Where the engine has less
  than was announced, the view is discounted, then made anew, then mirrored again.
- A restart wipes the backend and voids the tickets of requests that were under way.
"""

from collections.abc import Sequence
from math import inf, nextafter
from typing import Final

from warmroute.policies.routing.base import Candidate
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.view.lineup import Lineup
from warmroute.proxy.view.lookup import Chain, Lookup
from warmroute.proxy.view.mirror import Mirror
from warmroute.proxy.view.promises import Promises
from warmroute.proxy.view.ticket import Ticket

_MAX_LINEUPS: Final = 256


class View(Promises):
    """Match prompts against the caches of all backends, and keep the mirror true.

    Every ticket from `dispatched` ends in `confirmed` or `failed`, then perhaps in
    `realised`, and at last in `released`. Nothing here does I/O; all times are seconds
    of one monotonic clock.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<View [Backends: {len(self._mirrors)}, {self._index!r}]>"

    def match(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        bytes_per_token: float,
        now: float,
    ) -> Lookup:
        """Set what each candidate has cached of *prompt*, in whole engine blocks.

        Changes nothing in the view. Hashes each piece once for every block size
        among the candidates (65 ns a block), then takes O(runs + candidates).

        Args:
            prompt: What the request asks for.
            candidates: Where it may go; a list that comes again unchanged is known.
            bytes_per_token: Of the model, for the estimated grade.
            now: Time.

        Returns:
            The tiers of each candidate, and the chains, for `dispatched`.
        """
        if self._over and self._over[0][0] <= now:
            self._take_back(now)
        lineup = self._lineups.get(id(candidates))
        if lineup is None or len(lineup.mirrors) != len(candidates):
            lineup = self._line_up(candidates)
        lookup = Lookup(lineup, self._index, prompt.pieces, bytes_per_token)
        for candidate, matched in zip(candidates, lookup.matched):  # noqa: B905
            candidate.matched_tokens = matched
        return lookup

    def dispatched(self, lookup: Lookup, name: str, now: float) -> Ticket:
        """Enter the prompt of *lookup* for the backend that it is sent to.

        O(runs) for what is there already, 20 ns for each new block.
        """
        stamp = self._stamp = now if now > self._stamp else nextafter(self._stamp, inf)
        mirror, lineup = self._mirrors.get(name), lookup.lineup
        at = lineup.places.get(name)
        if mirror is None or at is None or lineup.mirrors[at] is not mirror:
            return Ticket(None, [], 0, lookup.bytes_per_token, stamp)
        # Empty when the block size has changed since the lookup.
        chains = lookup.chains.get(mirror.block_size)
        if not chains or mirror.source == "none":
            return Ticket(None, [], lookup.matched[at], lookup.bytes_per_token, stamp)
        ticket = Ticket(
            mirror, chains, lookup.matched[at], lookup.bytes_per_token, stamp
        )
        index, holder = self._index, mirror.holder
        num_new = 0
        for chain in chains:
            hashes, tokens = chain.hashes, chain.tokens
            if lookup.version != index.version:
                chain.path, chain.depth = index.path(hashes)
            path = chain.path
            self._look_back(ticket, mirror, chain)
            num_held = index.insert(holder, hashes, tokens, stamp, path, chain.depth)
            if path:
                chain.last = path[-1]
            if ticket.is_promise:  # runs part here by now where the prompt ends
                index.touch(mirror.gpu, hashes, stamp, chain.last)
            ticket.held.append(num_held)
            num_new += (len(hashes) - num_held) * tokens
        if num_new and not ticket.is_promise:
            mirror.capacity.insert(num_new, stamp)
        mirror.in_flight.add(stamp)
        return ticket

    def confirmed(self, ticket: Ticket, now: float) -> None:
        """Note the first byte of the answer: the blocks are real, and newest."""
        mirror = ticket.mirror
        if mirror is None or mirror.incarnation != ticket.incarnation:
            return
        mirror.in_flight.discard(ticket.entered)
        stamp = now if now > self._stamp else nextafter(self._stamp, inf)
        ticket.stamp = self._stamp = stamp
        for chain in ticket.chains:
            self._index.touch(mirror.holder, chain.hashes, stamp, chain.last)

    def realised(self, ticket: Ticket, cached_tokens: int, now: float) -> None:
        """Correct the mirror by the engine's report of *cached_tokens*.

        Differences below one block, and in the estimated grade below what the
        estimate may be off, say nothing.
        """
        mirror, distance = ticket.mirror, ticket.distance
        if mirror is None or mirror.incarnation != ticket.incarnation:
            return
        predicted, capacity = ticket.predicted_tokens, mirror.capacity
        if ticket.is_promise:
            self._verify(mirror, ticket, cached_tokens)
            return
        if not mirror.has_hit and (cached_tokens or distance is not None):
            self._hear(mirror, cached_tokens, predicted)
        limit = capacity.limit
        if (
            predicted == cached_tokens
            or abs(predicted - cached_tokens) < ticket.tolerance()
        ):
            if distance is not None:
                capacity.hit(distance)
        elif cached_tokens < predicted:
            held = self._index.tokens(mirror.holder)
            self._truncate(mirror, ticket, cached_tokens)
            if distance is not None:
                capacity.miss(distance, held)
        else:
            if distance is not None:
                capacity.hit(distance)
            capacity.exceed(self._index.tokens(mirror.holder))
        if capacity.limit != limit:
            self._bound(mirror)

    def _look_back(self, ticket: Ticket, mirror: Mirror, chain: Chain) -> None:
        """Note what is there of a chain that is about to be entered, and how old."""
        if ticket.is_promise:
            reach = self._index.reach(mirror.gpu, chain.path, chain.depth)
            ticket.announced += reach * chain.tokens
        elif ticket.predicted_tokens and len(ticket.chains) == 1:
            capacity = mirror.capacity
            used = self._index.last_used(mirror.holder, chain.path)
            if used is not None and used not in mirror.in_flight:
                ticket.distance = capacity.volume - capacity.volume_at(used)

    def _line_up(self, candidates: Sequence[Candidate]) -> Lineup:
        if len(self._lineups) >= _MAX_LINEUPS:
            self._lineups.clear()
        # A lineup keeps its list, so nothing else can come to have that identity.
        lineup = Lineup(candidates, self._mirrors)
        self._lineups[id(candidates)] = lineup
        return lineup

    def _hear(self, mirror: Mirror, cached_tokens: int, predicted: int) -> None:
        was_believed = mirror.is_believed
        mirror.hear(cached_tokens, predicted)
        if mirror.is_believed != was_believed:
            self._lineups.clear()

    def _truncate(self, mirror: Mirror, ticket: Ticket, cached_tokens: int) -> None:
        """Drop what is older than the prompt and lies behind the shortfall."""
        chain = ticket.chains[0]
        keep = ticket.blocks_in(cached_tokens)
        if len(ticket.chains) == 1 and keep < len(chain.hashes):
            self._index.truncate(mirror.holder, chain.hashes, keep, ticket.entered)
