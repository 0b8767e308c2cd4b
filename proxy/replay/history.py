"""Every block that was ever sent: tells a cold token from one that is paid twice."""

from warmroute.proxy.ledger.tokens import Classes, classify
from warmroute.proxy.replay.trace import TraceRequest


class History:
    """Put prompt tokens into the ledger's classes, with an exact memory.

    Args:
        block_size: Tokens a block.
    """

    __slots__ = ("_block_size", "_sent")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sent: set[int] = set()

    def __repr__(self) -> str:
        return f"<History [Blocks: {len(self._sent)}]>"

    def enter(
        self,
        request: TraceRequest,
        cached: int,
        best: int,
        predicted: int | None = None,
    ) -> Classes:
        """Classify the tokens of *request* and remember its blocks. O(blocks).

        Args:
            request: What was sent.
            cached: Tokens that were cached where it went.
            best: The most that were cached anywhere, as far as was known.
            predicted: What was expected where it went; None is what came true.
        """
        sent, num_seen = self._sent, 0
        for block in request.blocks:
            if block not in sent:
                break
            num_seen += 1
        sent.update(request.blocks)
        size = self._block_size
        most = (request.prompt_tokens - 1) // size * size
        if predicted is None:
            predicted = cached
        return classify(
            request.prompt_tokens, cached, predicted, best, num_seen * size, most
        )
