"""How far the promises of an announced view are believed.

Events are exact until something goes wrong that nobody notices: an engine that drops
blocks without a word, a message that decodes to something else. The reports of cached
tokens tell. One wrong promise is noise, a block that was evicted under way; a share of
promises that stays wrong is not.
"""

_WINDOW = 32
_MIN_PROMISES = 8
_WRONG_SHARE = 0.25
_LOST_SHARE = 0.1
_PATIENCE = 2


class Trust:
    """What came of the latest promises of one backend, 32 at most.

    Attributes:
        discount: Share of a promise that is believed; 1 while all is well.
        num_resyncs: How often the view was to be made anew; reset when all was well
            for a whole window.
    """

    __slots__ = ("_kept", "_outcomes", "discount", "num_resyncs")

    def __init__(self) -> None:
        self._outcomes: list[tuple[int, int]] = []
        self._kept = 0
        self.discount = 1.0
        self.num_resyncs = 0

    def __repr__(self) -> str:
        return f"<Trust [discount: {self.discount:.2f}, resyncs: {self.num_resyncs}]>"

    def observe(self, promised: int, cached: int, block_size: int) -> str:
        """Take in one report; say what follows.

        Args:
            promised: Tokens that the view had promised.
            cached: Tokens that the engine had.
            block_size: Tokens by which both may differ and still agree.

        Returns:
            ``well``; ``resync`` when too much was promised too often; ``degrade``
            when that came twice after a resync.
        """
        lost = max(0, promised - cached)
        outcomes = self._outcomes
        outcomes.append((promised, lost if lost >= block_size else 0))
        del outcomes[:-_WINDOW]
        total = sum(promise for promise, _ in outcomes)
        missed = sum(loss for _, loss in outcomes)
        wrong = sum(loss > 0 for _, loss in outcomes)
        num_wrong_allowed = max(_MIN_PROMISES, len(outcomes)) * _WRONG_SHARE
        if wrong <= num_wrong_allowed or missed <= _LOST_SHARE * total:
            self._note_good(lost)
            return "well"
        self.discount = 1.0 - missed / total
        outcomes.clear()
        self._kept = 0
        self.num_resyncs += 1
        return "degrade" if self.num_resyncs > _PATIENCE else "resync"

    def _note_good(self, lost: int) -> None:
        self._kept = self._kept + 1 if not lost else 0
        if self._kept >= _MIN_PROMISES:
            self.discount = 1.0
        if self._kept >= _WINDOW:
            self.num_resyncs = 0
