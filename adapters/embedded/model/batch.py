"""What one step computes: the new tokens of several sequences."""

from typing import Protocol

from warmroute.adapters.embedded.model.arrays import F32, I32, I64, Rows


class SequenceAttention(Protocol):
    """Attention of one sequence over a memory of its own."""

    def attend(
        self, layer: int, inputs: F32, queries: F32, keys: F32, values: F32
    ) -> F32:
        """Store the new token's keys and values, and attend with its queries.

        Args:
            layer: Which layer; called in their order, once a step.
            inputs: ``[hidden]``, the layer's attention input as `Llama` gives it.
            queries: ``[heads, d]`` after RoPE, not scaled.
            keys: ``[kv_heads, d]`` after RoPE.
            values: ``[kv_heads, d]``.

        Returns:
            ``[heads, d]``.
        """


class SequenceRows:
    """The rows of one sequence in a batch.

    Args:
        start: First row.
        count: Rows; 1 when decoding.
        table: Pages of the sequence, ``[ceil(context / block_size)]`` or longer; a
            null page among them stands for an evicted middle and is passed over.
        context: Tokens of the sequence, the new ones included.
        attention: Attends instead of the pages; the sequence then has one row.
        scores: ``[layers, kv_heads, >= context]``: each key's place is raised by the
            attention it received, summed over the new queries and the query heads
            of its group. Not with null pages.
    """

    __slots__ = ("attention", "context", "count", "scores", "start", "table")

    def __init__(
        self,
        start: int,
        count: int,
        table: I32,
        context: int,
        attention: SequenceAttention | None = None,
        scores: F32 | None = None,
    ) -> None:
        self.start = start
        self.count = count
        self.table = table
        self.context = context
        self.attention = attention
        self.scores = scores

    def __repr__(self) -> str:
        stop = self.start + self.count
        return f"<SequenceRows {self.start}:{stop} of {self.context} tokens>"


class Batch:
    """The tokens of one step, those of one sequence side by side.

    Args:
        token_ids: ``[T]``.
        positions: ``[T]``, for RoPE.
        slots: ``[T]``, where each token's keys and values go; ignored for sequences
            with an attention of their own.
        sequences: Whose rows they are; in order, without gaps.
        sample_rows: Rows whose logits are wanted, ascending.
    """

    __slots__ = ("positions", "sample_rows", "sequences", "slots", "token_ids")

    def __init__(
        self,
        token_ids: I32,
        positions: I32,
        slots: I64,
        sequences: list[SequenceRows],
        sample_rows: Rows,
    ) -> None:
        self.token_ids = token_ids
        self.positions = positions
        self.slots = slots
        self.sequences = sequences
        self.sample_rows = sample_rows

    def __repr__(self) -> str:
        return f"<Batch {len(self.token_ids)} tokens of {len(self.sequences)}>"
