"""The worker's side of budgets: attention that skips the blocks given back.

A block that was given back becomes block 0, vLLM's null block, in the request's row
of the block table, and so moves with it. Before the platform's own builder makes the
metadata of a step, rows with such holes are closed up and their sequences said to be
shorter. Keys were turned by their positions before they were cached, and the slot of
a new token is taken from the open row, so nothing else changes.
"""

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from warmroute.adapters.vllm.plugin.names import GIVEN_BACK, OPEN_HOLES

logger = logging.getLogger("vllm.warmroute")

TRIED = ("CPU_ATTN",)
"""Attention backends that it was tried with."""


class Holes:
    """Know which requests of a model runner have holes, and close them up.

    Args:
        runner: The ``GPUModelRunner`` or one derived from it.
        block_size: Tokens a block.
    """

    __slots__ = ("_block_size", "_requests", "_runner")

    def __init__(self, runner: Any, block_size: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self._requests: set[str] = set()

    def __repr__(self) -> str:
        return f"<Holes [Requests: {len(self._requests)}]>"

    def updating(self, update: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the runner's *update* of its batch that takes out blocks, too."""

        def update_states(output: Any) -> Any:
            answer = update(output)
            if self._requests:
                self._requests -= output.finished_req_ids
                self._requests -= output.scheduled_cached_reqs.resumed_req_ids
            given = getattr(output, GIVEN_BACK, None)
            for name, blocks in (given or {}).items():
                self._take_out(name, blocks, output)
            return answer

        return update_states

    def building(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """Return the platform's *build* of metadata that sees no holes."""

        def build_without_holes(
            common_prefix_len: int, common: Any, *rest: Any, **options: Any
        ) -> Any:
            if self._requests:
                common = self._closed(common)
            return build(common_prefix_len, common, *rest, **options)

        return build_without_holes

    def _take_out(self, name: str, blocks: list[int], output: Any) -> None:
        runner = self._runner
        state = runner.requests.get(name)
        if state is None or name in output.scheduled_cached_reqs.resumed_req_ids:
            return
        for at in blocks:
            state.block_ids[0][at] = 0
        row = runner.input_batch.req_id_to_index.get(name)
        if row is not None:
            runner.input_batch.block_table[0].block_table.np[row, blocks] = 0
        self._requests.add(name)

    def put_in(self, name: str, pairs: Iterable[tuple[int, int]]) -> None:
        """Put pages where a request had holes; between two steps."""
        runner = self._runner
        blocks = runner.requests[name].block_ids[0]
        row = runner.input_batch.req_id_to_index.get(name)
        for at, page in pairs:
            blocks[at] = page
            if row is not None:
                runner.input_batch.block_table[0].block_table.np[row, at] = page
        if 0 not in blocks:
            self._requests.discard(name)

    def _closed(self, common: Any) -> Any:
        names = self._runner.input_batch.req_ids[: common.num_reqs]
        rows = [row for row, name in enumerate(names) if name in self._requests]
        if not rows:
            return common
        table, lengths = common.block_table_tensor.clone(), common.seq_lens.clone()
        for row in rows:
            lengths[row] = close_up(table[row], int(lengths[row]), self._block_size)
        return dataclasses.replace(
            common,
            block_table_tensor=table,
            seq_lens=lengths,
            max_seq_len=int(lengths.max()),
        )


def close_up(row: Any, length: int, block_size: int) -> int:
    """Move a row's blocks together; return how many tokens they have."""
    count = -(-length // block_size)
    kept = row[:count][row[:count] != 0]
    row[: len(kept)] = kept
    row[len(kept) : count] = 0
    return length - (count - len(kept)) * block_size


def open_holes(worker: Any, is_armed: bool) -> str | None:
    """Say why a worker cannot skip blocks; otherwise let it, if *is_armed*.

    A method of every worker of vLLM; never raises.
    """
    try:
        runner = worker.model_runner
        fault = runner_fault(runner)
        if fault is None and is_armed and not hasattr(runner, OPEN_HOLES):
            _arm(runner)
    except Exception as error:
        logger.exception("warmroute: no block can be skipped")
        return f"unsupported: a look at the worker failed: {error!r}"
    return None if fault is None else f"unsupported: {fault}"


def runner_fault(runner: Any) -> str | None:
    """Say what about this model runner is not as it was tried."""
    found = tuple(inspect.signature(type(runner)._update_states).parameters)
    if found != ("self", "scheduler_output"):
        return f"the model runner updates its batch by {found}"
    if not hasattr(runner.input_batch.block_table[0].block_table, "np"):
        return "the block table is not kept in memory of the host"
    for group in _groups(runner):
        name = group.backend.get_name()
        if name not in TRIED:
            return f"attention by {name} was not tried (allowed: {', '.join(TRIED)})"
        if group.kernel_block_size is not None:
            return "blocks of the kernel differ from those of the cache"
        fault = _layers_fault(runner, group.layer_names)
        if fault is not None:
            return fault
    return None


def _layers_fault(runner: Any, names: list[str]) -> str | None:
    context = runner.compilation_config.static_forward_context
    for name in names:
        layer = context[name].impl
        if layer.sliding_window not in (None, -1):
            return f"{name} has a window of its own"
        if layer.alibi_slopes is not None:
            return f"{name} tells positions by where keys are (ALiBi)"
        if layer.attn_type != "decoder":
            return f"{name} is no decoder's"
    return None


def _groups(runner: Any) -> Iterator[Any]:
    for groups in runner.attn_groups:
        yield from groups


def _arm(runner: Any) -> None:
    first = next(_groups(runner))
    holes = Holes(runner, first.kv_cache_spec.block_size)
    for group in _groups(runner):
        for builder in group.metadata_builders:
            builder.build = holes.building(builder.build)
    runner._update_states = holes.updating(runner._update_states)
    setattr(runner, OPEN_HOLES, holes)
