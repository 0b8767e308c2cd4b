"""The attention of one step over pages and over private memories."""

from warmroute.adapters.embedded.model.arrays import F32
from warmroute.adapters.embedded.model.attention import Attention
from warmroute.adapters.embedded.model.batch import Batch, SequenceRows
from warmroute.adapters.embedded.model.config import LlamaConfig
from warmroute.adapters.embedded.model.decoding import DecodeAttention
from warmroute.adapters.embedded.model.kv_store import KVStore
from warmroute.adapters.embedded.model.reach import Reach


class PagedStep:
    """Who attends how in one step, decided once for all layers.

    Args:
        batch: The step.
        store: The pages.
        config: The model's shape.
        attention: For sequences with several rows, or whose scores are kept.
    """

    __slots__ = (
        "_attention",
        "_batch",
        "_config",
        "_decoding",
        "_prefills",
        "_private",
        "_store",
        "_stored",
    )

    def __init__(
        self, batch: Batch, store: KVStore, config: LlamaConfig, attention: Attention
    ) -> None:
        self._batch = batch
        self._store = store
        self._config = config
        self._attention = attention
        self._private = [rows for rows in batch.sequences if rows.attention]
        self._prefills: list[tuple[SequenceRows, Reach]] = []
        decode_rows, decode_reaches = [], []
        for rows in batch.sequences:
            if rows.attention:
                continue
            reach = Reach(rows, store.block_size)
            if rows.count == 1 and rows.scores is None:
                decode_rows.append(rows.start)
                decode_reaches.append(reach)
            else:
                self._prefills.append((rows, reach))
        self._decoding = DecodeAttention(decode_rows, decode_reaches)
        self._stored = self._stored_rows()

    def __repr__(self) -> str:
        return f"<PagedStep of {self._batch!r}>"

    def store(self, layer: int, heads: F32) -> None:
        """Store the new keys and values of *layer*.

        Args:
            layer: Which layer.
            heads: ``[T, heads + 2 * kv_heads, d]``: queries, keys, values.
        """
        pair, stored = self._store.pairs[layer], self._stored
        new = heads[stored, self._config.num_heads :]
        pair[:, self._batch.slots[stored]] = new.swapaxes(0, 1)

    def attend(self, layer: int, inputs: F32, heads: F32, out: F32) -> None:
        """Attend, once all that is in reach is stored.

        Args:
            layer: Which layer; called in their order.
            inputs: ``[T, hidden]``, the layer's attention input.
            heads: As for `store`.
            out: ``[T, heads, d]``, written.
        """
        queries, pair = heads[:, : self._config.num_heads], self._store.pairs[layer]
        self._decoding.attend(queries, pair, out)
        for rows, reach in self._prefills:
            span = slice(rows.start, rows.start + rows.count)
            received = None if rows.scores is None else rows.scores[layer]
            sections = reach.sections(pair)
            self._attention.attend(
                queries[span], sections, reach.length, out[span], received
            )
        for rows in self._private:
            self._attend_private(layer, rows, inputs, heads, out)

    def _attend_private(
        self, layer: int, rows: SequenceRows, inputs: F32, heads: F32, out: F32
    ) -> None:
        assert rows.attention is not None
        at, stop = rows.start, -self._config.num_kv_heads
        queries = heads[at, : self._config.num_heads]
        keys = heads[at, self._config.num_heads : stop]
        out[at] = rows.attention.attend(
            layer, inputs[at], queries, keys, heads[at, stop:]
        )

    def _stored_rows(self) -> slice | list[int]:
        """Return the rows that go into pages; a slice where it is all of them."""
        if not self._private:
            return slice(None)
        private = {rows.start for rows in self._private}
        return [at for at in range(len(self._batch.token_ids)) if at not in private]
