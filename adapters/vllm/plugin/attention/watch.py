"""The worker's account of how much attention each block of a sequence receives.

A sequence that is watched is looked at when the end of its prompt is computed, and
then at every few of its tokens. What its blocks receive is averaged over heads and
over the layers that look, and older looks count less. Only the queries of the end of
the prompt vote, as in SnapKV (Li et al., 2024, section 4), because the first blocks
go before a token was decoded; from then on it is what H2O (Zhang et al., 2023,
section 4) adds up, in whole blocks, and with a decay.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warmroute.adapters.vllm.plugin.names import WATCHED

logger = logging.getLogger("vllm.warmroute")

LAST_QUERIES = 32
"""Most queries at the end of a prompt that vote."""

EVERY_TOKENS = 4
"""A sequence is looked at once in so many decoded tokens."""

KEPT = 0.9
"""What is left of the earlier looks' weight at each look."""

Masses = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Row:
    """Say where in a step's tensors one watched sequence is.

    Args:
        name: Its request.
        first: Its first query that is looked at.
        end: The query behind its last one.
        length: How many tokens it holds; the last query sees all of them.
        places: Where in the sequence its held blocks are.
        pages: Where in the cache they are.
    """

    name: str
    first: int
    end: int
    length: int
    places: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int64]


class Batch:
    """Hold rows that are looked at together, and what they showed so far.

    Attributes:
        rows: All with equally many queries.
        tensors: What the backend makes of them, once a step.
    """

    __slots__ = ("_num_looks", "_sum", "rows", "tensors")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.tensors: Any = None
        self._sum: Masses | None = None
        self._num_looks = 0

    def __repr__(self) -> str:
        return f"<Batch [Rows: {len(self.rows)}, looks: {self._num_looks}]>"

    def add(self, masses: Masses) -> None:
        """Add what one layer shows: a row of blocks for each row."""
        self._sum = masses if self._sum is None else self._sum + masses
        self._num_looks += 1

    def mean(self) -> Masses | None:
        """Return the mean over the layers that looked; None if none did."""
        return None if self._sum is None else self._sum / np.float32(self._num_looks)


class Watch:
    """Know the watched requests of a model runner, and what their blocks receive.

    Whatever fails ends the watching, and nothing else.

    Args:
        runner: The ``GPUModelRunner`` or one derived from it.
        block_size: Tokens a block.

    Attributes:
        batches: What the layers look at in the present step.
    """

    __slots__ = ("_block_size", "_is_broken", "_masses", "_runner", "batches")

    def __init__(self, runner: Any, block_size: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self._masses: dict[str, Masses] = {}
        self._is_broken = False
        self.batches: list[Batch] = []

    def __repr__(self) -> str:
        return f"<Watch [Requests: {len(self._masses)}]>"

    def updating(self, update: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the runner's *update* of its batch that learns whom to watch."""

        def update_states(output: Any) -> Any:
            answer = update(output)
            for name in output.finished_req_ids if self._masses else ():
                self._masses.pop(name, None)
            for name in getattr(output, WATCHED, ()):
                self._masses[name] = np.empty(0, np.float32)
            return answer

        return update_states

    def building(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """Return the platform's *build* of metadata after which layers look."""

        def build_and_watch(
            common_prefix_len: int, common: Any, *rest: Any, **options: Any
        ) -> Any:
            self._guarded(lambda: self._begin(common))
            return build(common_prefix_len, common, *rest, **options)

        return build_and_watch

    def look(self, measure: Callable[[Batch], Masses]) -> None:
        """Have one layer *measure* what it gives to each block."""

        def measure_all() -> None:
            for batch in self.batches:
                batch.add(measure(batch))

        self._guarded(measure_all)

    def masses(self, names: Iterable[str]) -> dict[str, list[float]]:
        """Return what each block of these requests receives, as far as is known."""
        self._guarded(self._end)
        return {
            name: self._masses[name].tolist() for name in names if name in self._masses
        }

    def _guarded(self, act: Callable[[], None]) -> None:
        if self._is_broken:
            return
        try:
            act()
        except Exception:
            logger.exception("warmroute: attention is no longer looked at")
            self._is_broken = True
            self._masses.clear()
            self.batches = []

    def _begin(self, common: Any) -> None:
        self._end()
        if not self._masses:
            return
        names = self._runner.input_batch.req_ids[: common.num_reqs]
        decoded: list[Row] = []
        for at, name in enumerate(names):
            row = self._row(at, name, common) if name in self._masses else None
            if row is None:
                continue
            if row.end - row.first == 1:
                decoded.append(row)
            else:
                self.batches.append(Batch([row]))
        if decoded:
            self.batches.append(Batch(decoded))

    def _row(self, at: int, name: str, common: Any) -> Row | None:
        length = int(common.seq_lens[at])
        start, end = (int(common.query_start_loc[one]) for one in (at, at + 1))
        if length != self._runner.requests[name].num_prompt_tokens and (
            end - start != 1 or length % EVERY_TOKENS
        ):
            return None
        count = -(-length // self._block_size)
        table = self._runner.input_batch.block_table[0].block_table.np[at, :count]
        places = np.flatnonzero(table)
        held = length - (count - len(places)) * self._block_size
        first = max(start, end - LAST_QUERIES)
        return Row(name, first, end, held, places, table[places].astype(np.int64))

    def _end(self) -> None:
        batches, self.batches = self.batches, []
        for batch in batches:
            found = batch.mean()
            for at, row in enumerate(batch.rows if found is not None else ()):
                assert found is not None
                if row.name in self._masses:
                    self._learn(row, found[at, : len(row.places)])

    def _learn(self, row: Row, found: Masses) -> None:
        known = self._masses[row.name]
        weight = 1 - KEPT if len(known) else 1.0
        count = int(row.places[-1]) + 1
        if count > len(known):
            known = np.concatenate([known, np.zeros(count - len(known), np.float32)])
        known *= 1 - weight
        known[row.places] += np.float32(weight) * found
        self._masses[row.name] = known
