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
- A restart wipes the backend and voids the tickets of requests that were under way.
"""

from collections.abc import Sequence
from math import inf, nextafter

from warmroute.policies.kv.capacity import Capacity
from warmroute.policies.kv.outline import Node, outline
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.routing.base import Candidate
from warmroute.proxy.lookup import Lookup, Ticket
from warmroute.proxy.mirror import Mirror
from warmroute.proxy.prompt import Prompt

DEFAULT_BLOCK_SIZE = 16


class View:
    """Match prompts against the caches of all backends, and keep the mirror true.

    Every ticket from `dispatched` ends in `confirmed` or `failed`, then perhaps in
    `realised`. Nothing here does I/O; all times are seconds of one monotonic clock.
    """

    __slots__ = ("_index", "_mirrors", "_stamp")

    def __init__(self, index: PrefixIndex) -> None:
        self._index = index
        self._mirrors: dict[str, Mirror] = {}
        self._stamp = 0.0

    def __repr__(self) -> str:
        return f"<View [Backends: {len(self._mirrors)}, {self._index!r}]>"

    def add_backend(
        self,
        name: str,
        block_size: int | None = DEFAULT_BLOCK_SIZE,
        capacity_tokens: int | None = None,
        source: str = "mirror",
    ) -> None:
        """Begin to keep the view of a backend; unknown block sizes are taken as 16.

        A backend of that name that is there already is replaced.
        """
        if name in self._mirrors:
            self.remove_backend(name)
        holder = self._index.add_holder(name)
        self._mirrors[name] = Mirror(
            name,
            self._index.holders.slot(name),
            holder,
            block_size or DEFAULT_BLOCK_SIZE,
            source,
            Capacity(capacity_tokens),
        )
        self._index.set_capacity(holder, capacity_tokens)

    def remove_backend(self, name: str) -> None:
        """Forget a backend; its name may come back and inherits nothing."""
        self._mirrors.pop(name).restart()
        self._index.remove_backend(name)

    def wipe(self, name: str) -> None:
        """Drop all blocks of a backend whose engine has restarted."""
        mirror = self._mirrors[name]
        mirror.restart()
        self._index.remove_holder(mirror.holder)
        self._bound(mirror)

    def configure(
        self,
        name: str,
        block_size: int | None = None,
        capacity_tokens: int | None = None,
    ) -> None:
        """Take over what became known of an engine; None leaves as is."""
        mirror = self._mirrors[name]
        if block_size and block_size != mirror.block_size:
            mirror.block_size = block_size
            self._index.remove_holder(mirror.holder)
        if capacity_tokens is not None:
            mirror.capacity.tell(capacity_tokens)
            self._bound(mirror)

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

        Returns:
            The tiers of each candidate, and the chains, for `dispatched`.
        """
        mirrors = [self._mirrors.get(candidate.name) for candidate in candidates]
        lookup = Lookup(mirrors, bytes_per_token, self._index.holders.has_tiers)
        for piece in prompt.pieces:
            lookup.add(self._index, piece)
        for candidate, matched in zip(candidates, lookup.matched, strict=True):
            candidate.matched_tokens = matched
        return lookup

    def dispatched(self, lookup: Lookup, name: str, now: float) -> Ticket:
        """Enter the prompt of *lookup* for the backend that it is sent to.

        O(runs) for what is there already, 20 ns for each new block.
        """
        stamp = self._tick(now)
        ticket = Ticket(lookup, name, stamp)
        mirror = ticket.mirror
        if mirror is None or mirror.source == "none":
            return ticket
        index, holder, capacity = self._index, mirror.holder, mirror.capacity
        if ticket.predicted_tokens and len(ticket.chains) == 1:
            previous = index.last_used(holder, ticket.chains[0].hashes)
            if previous not in mirror.in_flight:
                ticket.previous = previous
        ticket.volume = capacity.volume
        num_new = 0
        for chain in ticket.chains:
            num_held = index.insert(holder, chain.hashes, chain.tokens, stamp)
            ticket.held.append(num_held)
            num_new += (len(chain.hashes) - num_held) * chain.tokens
        if num_new:
            capacity.insert(num_new, stamp)
        mirror.in_flight.add(stamp)
        return ticket

    def confirmed(self, ticket: Ticket, now: float) -> None:
        """Note the first byte of the answer: the blocks are real, and newest."""
        mirror = ticket.live_mirror()
        if mirror is None:
            return
        mirror.in_flight.discard(ticket.entered)
        ticket.stamp = self._tick(now)
        for chain in ticket.chains:
            self._index.touch(mirror.holder, chain.hashes, ticket.stamp)

    def failed(self, ticket: Ticket) -> None:
        """Take back a dispatch of which nothing came; what others use stays.

        An answer that began and was an error may be taken back, too.
        """
        mirror = ticket.live_mirror()
        if mirror is None:
            return
        mirror.in_flight.discard(ticket.entered)
        for chain, held in zip(ticket.chains, ticket.held, strict=True):
            self._index.rollback(mirror.holder, chain.hashes, held, ticket.stamp)

    def realised(self, ticket: Ticket, cached_tokens: int, now: float) -> None:
        """Correct the mirror by the engine's report of *cached_tokens*.

        Differences below one block, and in the estimated grade below what the
        estimate may be off, say nothing.
        """
        mirror = ticket.live_mirror()
        if mirror is None:
            return
        predicted, capacity = ticket.predicted_tokens, mirror.capacity
        distance = None
        if ticket.previous is not None:
            distance = max(0, ticket.volume - capacity.volume_at(ticket.previous))
            mirror.hear(cached_tokens, predicted)
        elif cached_tokens:
            mirror.hear(cached_tokens, predicted)
        held = self._index.tokens(mirror.holder)
        if ticket.is_short(cached_tokens):
            self._truncate(mirror, ticket, cached_tokens)
            if distance is not None:
                capacity.miss(distance, held)
        else:
            if distance is not None:
                capacity.hit(distance)
            if ticket.is_over(cached_tokens):
                capacity.exceed(held)
        self._bound(mirror)

    def facts(self, name: str) -> dict[str, object]:
        """Return what `/api/state` shows of the view of a backend."""
        mirror = self._mirrors[name]
        return {
            "source": mirror.source if mirror.is_believed else "none",
            "blocks": self._index.blocks(mirror.holder),
            "seq": None,
            "incarnation": mirror.incarnation,
            "gaps": 0,
            "replays": 0,
            "lag_s": None,
        }

    def stats(self) -> dict[str, int]:
        """Return the size of the index over all backends, and its cap."""
        index = self._index
        return {
            "bytes": index.num_bytes,
            "cap_bytes": index.max_bytes,
            "blocks": index.num_blocks,
        }

    def tree(self, name: str, depth: int, now: float | None = None) -> Node:
        """Return what a backend has as nested runs, *depth* levels deep.

        Ages count from *now*, or from the last use of anything.
        """
        return outline(self._index, name, depth, self._stamp if now is None else now)

    def _tick(self, now: float) -> float:
        """Return a stamp that is later than all before: the time, if it moved."""
        self._stamp = now if now > self._stamp else nextafter(self._stamp, inf)
        return self._stamp

    def _bound(self, mirror: Mirror) -> None:
        limit = mirror.capacity.limit
        num_tokens = None if limit is None else int(limit)
        if self._index.holders.all[mirror.holder].capacity != num_tokens:
            self._index.set_capacity(mirror.holder, num_tokens)

    def _truncate(self, mirror: Mirror, ticket: Ticket, cached_tokens: int) -> None:
        """Drop what is older than the prompt and lies behind the shortfall."""
        if len(ticket.chains) != 1:
            return
        chain = ticket.chains[0]
        keep = ticket.blocks_in(cached_tokens)
        self._index.truncate(mirror.holder, chain.hashes, keep, ticket.entered)
