"""One step of the engine after the other: no thread, no event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, ParamSpec

from warmroute.adapters.embedded.engine.runner import Runner
from warmroute.adapters.embedded.engine.scheduler import Plan, Scheduler
from warmroute.adapters.embedded.engine.sequence import Sequence, SequenceGroup
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.engine.stats import (
    EngineObserver,
    EngineStats,
    FinishedRequest,
)
from warmroute.adapters.embedded.engine.stream import Delta, EngineFailed, FinishReason
from warmroute.adapters.embedded.engine.token_budget import TokenBudgets
from warmroute.adapters.embedded.model.arrays import F32

P = ParamSpec("P")

log = logging.getLogger(__name__)


class Output(NamedTuple):
    """What a step has for one request: a delta, or the error that ended it."""

    group: SequenceGroup
    result: Delta | EngineFailed


class EngineCore:
    """Schedule, compute, sample; everything of it on one thread.

    A failure of the model or of sampling ends the requests that were part of it and
    leaves the others alone. Any other exception leaves `step`: the bookkeeping is
    wrong then, and nothing can be served any more.

    Args:
        state: The memory.
        runner: Computes planned work.
        budgets: Token eviction inside sequences.
        observer: Told of tokens, ends and preemptions.
    """

    __slots__ = (
        "_budgets",
        "_generation_tokens",
        "_groups",
        "_observer",
        "_outputs",
        "_prompt_tokens",
        "_runner",
        "_scheduler",
        "_silenced",
        "_steps",
        "state",
        "stats",
    )

    def __init__(
        self,
        state: EngineState,
        runner: Runner,
        budgets: TokenBudgets,
        observer: EngineObserver | None = None,
    ) -> None:
        options = state.options
        self.state = state
        self._runner = runner
        self._budgets = budgets
        self._observer = observer or EngineObserver()
        self._silenced: set[str] = set()
        self._scheduler = state.scheduler = Scheduler(
            state.pool,
            state.cache,
            state.store,
            budgets,
            options.max_num_seqs,
            options.max_batched_tokens,
            options.max_shared_tokens,
            state.let_go,
        )
        self._groups: set[SequenceGroup] = set()
        self._outputs: list[Output] = []
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._steps = 0
        self.stats = self._count()

    def __repr__(self) -> str:
        return f"<EngineCore: {len(self._groups)} requests, {self._steps} steps>"

    @property
    def is_idle(self) -> bool:
        """Tell whether there is nothing to compute."""
        return self._scheduler.is_idle

    def add(self, group: SequenceGroup) -> None:
        """Queue a request."""
        self._groups.add(group)
        self._scheduler.add(group.sequences[0])

    def abort(self, group: SequenceGroup) -> None:
        """End a request now and free its blocks; no effect when it has ended."""
        self._end(group, "abort")

    def fail_all(self, why: str) -> list[Output]:
        """Return all outputs that are left, with an error for each open request.

        Touches no bookkeeping and tells nobody: either may be what is broken.
        """
        failed = [Output(group, EngineFailed(why)) for group in self._groups]
        self._groups.clear()
        return self._outputs + failed

    def step(self) -> None:
        """Compute one step of whatever runs; does nothing when idle.

        Which blocks it takes and fills is told before it is computed: who follows the
        cache has as long to learn of it as the tokens take to come.
        """
        self.state.retention.expire()
        plan = self._scheduler.schedule()
        self.state.contents.observer.batch_ended()
        self.state.note_peak()
        for sequence in plan.preempted:
            self._tell(self._observer.preempted, sequence.group.request)
        for sequence in plan.unserved:
            self._fail([sequence.group], "the block pool cannot hold its tokens")
        if plan.work:
            self._compute(plan)
            self._steps += 1

    def take_outputs(self) -> list[Output]:
        """Return what happened since the last call, and tell the observers."""
        self.state.contents.observer.batch_ended()
        self.stats = self._count()
        self._tell(self._observer.step_ended, self.stats)
        outputs, self._outputs = self._outputs, []
        return outputs

    def _compute(self, plan: Plan) -> None:
        groups = dict.fromkeys(one.sequence.group for one in plan.work)
        try:
            logits = self._runner.run(plan.work)
        except Exception as error:  # whatever a model may raise
            log.exception("step_failed requests=%d", len(groups))
            self._fail(groups, f"the model failed: {type(error).__name__}: {error}")
            self.state.cache.undo_step()
            return
        sampled = [one.sequence for one in plan.work if one.is_sampled]
        for sequence, count in plan.work:
            sequence.num_computed += count
        for sequence, row in zip(sampled, logits, strict=True):
            self._advance(sequence, row)

    def _advance(self, sequence: Sequence, logits: F32) -> None:
        group = sequence.group
        try:
            for one in self._forked(sequence):
                self._budgets.start(one)
                self._emit(one, one.choice.advance(logits))
        except Exception as error:  # of sampling, of text, or of token eviction
            log.exception("sampling_failed request=%s", group.request.request_id)
            self._fail([group], f"sampling failed: {type(error).__name__}: {error}")

    def _forked(self, sequence: Sequence) -> list[Sequence]:
        if sequence.group.is_forked:
            return [sequence]
        self._scheduler.fork(sequence)
        return sequence.group.sequences

    def _emit(self, sequence: Sequence, delta: Delta) -> None:
        group = sequence.group
        sequence.tokens.append(delta.token_ids[-1])
        self._generation_tokens += 1
        self._outputs.append(Output(group, delta))
        self._tell_token(sequence)
        if delta.finish_reason is not None:
            self._scheduler.remove(sequence)
            self._settle(group)

    def _tell_token(self, sequence: Sequence) -> None:
        now, group = self.state.clock(), sequence.group
        if sequence.last_token_s is not None:
            gap_s = now - sequence.last_token_s
            self._tell(self._observer.inter_token, group.request, gap_s)
        elif sequence is group.sequences[0]:
            self._prompt_tokens += len(group.request.prompt_ids)
            self._tell(
                self._observer.first_token, group.request, now - group.submitted_s
            )
        sequence.last_token_s = now

    def _fail(self, groups: Iterable[SequenceGroup], why: str) -> None:
        for group in groups:
            self._outputs.append(Output(group, EngineFailed(why)))
            self._end(group, "error")

    def _end(self, group: SequenceGroup, reason: FinishReason) -> None:
        if group not in self._groups:
            return
        for sequence in group.sequences:
            if not sequence.is_finished:
                self._scheduler.remove(sequence)
                delta = sequence.choice.end(reason)
                if reason != "error":
                    self._outputs.append(Output(group, delta))
        self._settle(group)

    def _settle(self, group: SequenceGroup) -> None:
        if group.is_finished:
            self._groups.discard(group)
            self._tell(self._observer.finished, self._outcome(group))

    def _outcome(self, group: SequenceGroup) -> FinishedRequest:
        choices = [one.choice for one in group.sequences]
        return FinishedRequest(
            group.request,
            tuple(one.finish_reason for one in choices if one.finish_reason),
            group.num_cached_tokens or 0,
            sum(one.num_generated for one in choices),
            self.state.clock() - group.submitted_s,
        )

    def _count(self) -> EngineStats:
        state, scheduler = self.state, self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage=state.pool.usage,
            prefix_queries=state.cache.num_queries,
            prefix_hits=state.cache.num_hits,
            host_hits=state.cache.num_host_hits,
            preemptions=scheduler.num_preemptions,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            peak_blocks=state.peak_blocks,
            steps=self._steps,
            num_blocks=state.options.num_blocks,
            block_size=state.options.block_size,
        )

    def _tell(self, call: Callable[P, None], *facts: P.args, **more: P.kwargs) -> None:
        try:
            call(*facts, **more)
        except Exception:  # an observer never fails a request
            method = call.__name__
            if method not in self._silenced:
                self._silenced.add(method)
                log.exception("observer_failed method=%s", method)
