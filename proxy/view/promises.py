"""What was promised of announced blocks, and what became of it."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.trunks import Survey
from warmroute.proxy.view.mirror import Mirror
from warmroute.proxy.view.shown import Shown
from warmroute.proxy.view.ticket import Ticket

_GRACE_S: Final = 0.1
_MAX_UNHEARD: Final = 8


class Promises(Shown):
    """Hold engines that announce their blocks to what was promised; see `View`.

    Attributes:
        hear: Enters what engines have announced and nobody has looked at yet; None
            while no engine is listened to.
        on_distrust: Called with a backend and ``resync`` or ``degrade`` when its
            announced view has promised too much, ``silent`` when nothing is announced.
    """

    __slots__ = ("_over", "hear", "on_distrust")

    def __init__(
        self, index: PrefixIndex, clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(index, clock)
        self.hear: Callable[[], None] | None = None
        self.on_distrust: Callable[[str, str], None] | None = None
        self._over: deque[tuple[float, Ticket]] = deque()

    def failed(self, ticket: Ticket) -> None:
        """Take back a dispatch of which nothing came; what others use stays.

        An answer that began and was an error may be taken back, too.
        """
        mirror = ticket.mirror
        if mirror is None or mirror.incarnation != ticket.incarnation:
            return
        mirror.in_flight.discard(ticket.entered)
        for chain, held in zip(ticket.chains, ticket.held, strict=True):
            keep = 0 if ticket.is_promise else held
            self._index.rollback(mirror.holder, chain.hashes, keep, ticket.stamp)

    def released(self, ticket: Ticket, now: float) -> None:
        """Note that the request is over: what it held may go from its engine.

        Its blocks stay promised for 0.1 s more, until their announcement has surely
        come: it travels on another connection than the answer.
        """
        if ticket.is_promise:
            self._over.append((now + _GRACE_S, ticket))

    def announced_gone(self, name: str) -> None:
        """Take back what ended requests held there: blocks go from that engine.

        Its events come in order, so that theirs have come as well.
        """
        over, self._over = self._over, deque()
        for until, ticket in over:
            mirror = ticket.mirror
            if mirror is not None and mirror.name == name:
                self.failed(ticket)
                if ticket.doubted < 0 or self._is_explained(mirror, ticket):
                    continue
            self._over.append((until, ticket))

    def survey(self, names: Sequence[str], max_nodes: int, now: float) -> Survey:
        """Begin a survey, without what ended requests held; see `Shown`."""
        self._take_back(now)
        return super().survey(names, max_nodes, now)

    def _take_back(self, now: float) -> None:
        while self._over and self._over[0][0] <= now:
            ticket = self._over.popleft()[1]
            self.failed(ticket)
            mirror = ticket.mirror
            if (
                ticket.doubted >= 0
                and mirror is not None
                and mirror.incarnation == ticket.incarnation
                and not self._is_explained(mirror, ticket)
            ):
                self._judge(mirror, ticket, ticket.predicted_tokens, ticket.doubted)

    def _verify(self, mirror: Mirror, ticket: Ticket, cached: int) -> None:
        """Hold a promise of announced blocks against what the engine had.

        Blocks that were announced to be gone since were evicted under way, and what
        others had only begun to compute was never announced: neither is a lie. An
        announcement travels on another connection than the answer, so that what is
        not explained yet is judged when the ticket is over.
        """
        if cached != ticket.predicted_tokens:
            ticket.difference = self._explain(mirror, ticket, cached)
            if ticket.difference == "unexplained":
                ticket.doubted = cached
                return
        self._judge(mirror, ticket, cached, cached)

    def _is_explained(self, mirror: Mirror, ticket: Ticket) -> bool:
        """Look again for what explains a difference; tell whether it was found."""
        cached = ticket.doubted
        ticket.difference = self._explain(mirror, ticket, cached)
        if ticket.difference == "unexplained":
            return False
        ticket.doubted = -1
        if ticket.record is not None:
            ticket.record.difference = ticket.difference
        self._judge(mirror, ticket, cached, cached)
        return True

    def _judge(
        self, mirror: Mirror, ticket: Ticket, promised: int, cached: int
    ) -> None:
        """Learn how far to trust the backend, and act on it."""
        trust = mirror.trust
        before = trust.discount
        verdict = trust.observe(promised, cached, mirror.block_size)
        if self._is_silent(mirror, ticket):
            verdict = "silent"
        if trust.discount != before:
            self._lineups.clear()
        if verdict != "well" and self.on_distrust is not None:
            self.on_distrust(mirror.name, verdict)

    def _is_silent(self, mirror: Mirror, ticket: Ticket) -> bool:
        """Tell whether an engine computes blocks and never announces any."""
        if mirror.has_announced or not ticket.chains[0].hashes:
            return False
        mirror.num_unheard += 1
        return mirror.num_unheard >= _MAX_UNHEARD

    def _explain(self, mirror: Mirror, ticket: Ticket, cached: int) -> str:
        """Say why the engine had more or less than it had announced."""
        if cached > ticket.predicted_tokens:
            return "came_later"
        was_removed, since = mirror.was_removed, ticket.entered
        missed = ticket.chains[0].hashes[cached // ticket.chains[0].tokens :][:1]
        if len(ticket.chains) > 1:  # which of them had less, nobody tells
            missed = [one for chain in ticket.chains for one in chain.hashes]
        if was_removed is not None and any(was_removed(one, since) for one in missed):
            return "evicted"
        return "not_announced" if cached >= ticket.announced else "unexplained"
