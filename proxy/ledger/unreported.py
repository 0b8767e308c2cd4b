"""What an engine's own counters say of answers that report no cached tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmroute.adapters.base import CacheCounters
from warmroute.proxy.ledger.flow import Flow

_MIN_TOKENS = 1024


@dataclass(slots=True)
class Sums:
    """What was counted of one backend up to some moment.

    Args:
        queried: Prompt tokens that the engine looked up.
        hit: Those of them that it had.
        prompts: Prompt tokens of our answers without a report.
        promised: Tokens that the view promised for those.
    """

    queried: int = 0
    hit: int = 0
    prompts: int = 0
    promised: int = 0

    def since(self, start: "Sums") -> "Sums":
        """Return what came after *start*."""
        return Sums(
            self.queried - start.queried,
            self.hit - start.hit,
            self.prompts - start.prompts,
            self.promised - start.promised,
        )

    @property
    def realised(self) -> int:
        """Tokens of our prompts that were hits, if they fared as all prompts did."""
        if self.queried <= 0:
            return 0
        return round(self.prompts * min(1.0, max(0.0, self.hit / self.queried)))


class Unreported:
    """Hold the promises of one backend against its counters.

    An engine counts all its prompts in sums. The difference of two readings, less
    what answers did report, is the hit ratio of those that did not. Sums are taken
    from the first reading on, so that requests which run across a reading are no
    error that stays. With traffic of others, theirs counts as like ours.
    """

    __slots__ = ("_charged", "_last", "_start", "counters")

    def __init__(self) -> None:
        self.counters: CacheCounters | None = None
        self._start = self._last = Sums()
        self._charged = 0

    def __repr__(self) -> str:
        return f"<Unreported {self._last!r}>"

    def read(self, counters: CacheCounters, flows: Sequence[Flow]) -> Sums | None:
        """Take a reading, and charge the flows with what was promised in vain.

        Args:
            counters: Of the engine.
            flows: All of the backend.

        Returns:
            What came since the last reading that told as much; None when there is
            too little to tell, or the engine has started anew.
        """
        before, self.counters = self.counters, counters
        now = _sums(counters, flows)
        if (
            before is None
            or counters.queried < before.queried
            or counters.hit < before.hit
        ):
            self._start = self._last = now
            self._charged = 0
            return None
        latest = now.since(self._last)
        if latest.prompts < _MIN_TOKENS:
            return None
        self._last = now
        total = now.since(self._start)
        owed = total.promised - total.realised
        _charge(flows, owed - self._charged)
        self._charged = owed
        # What runs across a reading would make a short interval tell a lie.
        return latest if 2 * latest.queried > latest.prompts else None


def _sums(counters: CacheCounters, flows: Sequence[Flow]) -> Sums:
    """Return the sums of this moment, without what answers reported."""
    prompts = sum(one.unreported_tokens for one in flows)
    reported = sum(one.prompt_tokens for one in flows) - prompts
    return Sums(
        counters.queried - reported,
        counters.hit - sum(one.cached_tokens for one in flows),
        prompts,
        sum(one.promised_tokens for one in flows),
    )


def _charge(flows: Sequence[Flow], owed: int) -> None:
    """Share out what is owed by how much was promised without a report."""
    total = sum(one.unreported_tokens for one in flows)
    left = owed
    for flow in flows:
        share = owed * flow.unreported_tokens // total
        flow.owed_tokens += share
        left -= share
    flows[0].owed_tokens += left
