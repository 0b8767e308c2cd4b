"""The engine for an application: asyncio outside, one thread inside."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from warmroute.adapters.embedded.budget.rules import TokenRules
from warmroute.adapters.embedded.engine.choice import Choice
from warmroute.adapters.embedded.engine.contents import KVObserver
from warmroute.adapters.embedded.engine.core import EngineCore, Output
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import (
    EngineRefused,
    GenerationRequest,
    Limits,
)
from warmroute.adapters.embedded.engine.runner import Runner
from warmroute.adapters.embedded.engine.sequence import SequenceGroup
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.engine.stats import EngineObserver, EngineStats
from warmroute.adapters.embedded.engine.stream import EngineFailed, RequestStream
from warmroute.adapters.embedded.engine.token_budget import BudgetRules, TokenBudgets
from warmroute.adapters.embedded.engine.worker import Command, Worker
from warmroute.adapters.embedded.model.crew import Crew
from warmroute.adapters.embedded.model.kv_store import KVStore

if TYPE_CHECKING:
    from warmroute.adapters.embedded.model.loading import LoadedModel

T = TypeVar("T")


class Engine:
    """Serve requests by continuous batching over paged KV.

    All methods belong to the event loop that `start` was called on. Computing is
    done on one thread; its outputs come over in one call a step.

    Args:
        loaded: Model, tokenizer and name.
        options: Settings.
        clock: Monotonic seconds.
        observer: Told of tokens and ends, on the compute thread.
        kv_observer: Told of blocks stored and removed, on the compute thread.
        rules: Token eviction inside sequences; all that there are by default.

    Raises:
        ConfigError: ``max_model_len`` is more than model or blocks can hold.
        ModelError: There is no memory for so many blocks.
        PolicyError: No such eviction policy.
    """

    __slots__ = (
        "_arrivals",
        "_budgets",
        "_clock",
        "_core",
        "_crew",
        "_drained",
        "_is_closed",
        "_is_closing",
        "_loaded",
        "_loop",
        "_open",
        "_state",
        "_worker",
        "limits",
        "options",
    )

    def __init__(
        self,
        loaded: LoadedModel,
        options: EngineOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        observer: EngineObserver | None = None,
        kv_observer: KVObserver | None = None,
        rules: BudgetRules | None = None,
    ) -> None:
        config = loaded.model.config
        longest = options.longest(config.max_positions)
        self.options = options
        self.limits = Limits(longest, options.max_num_seqs, config.vocab_size)
        self._loaded = loaded
        self._clock = clock
        store = KVStore(config, options.num_pages, options.block_size)
        self._state = EngineState(store, options, loaded.name, clock, kv_observer)
        self._budgets = TokenBudgets(
            rules or TokenRules(), loaded.model, store, self._state.pool
        )
        self._crew = Crew(
            loaded.model,
            store,
            options.threads,
            options.max_batched_tokens,
            options.max_num_seqs,
        )
        runner = Runner(self._crew, options.block_size, self._budgets)
        self._core = EngineCore(self._state, runner, self._budgets, observer)
        self._worker = Worker(self._core, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrivals = count()
        self._open: set[SequenceGroup] = set()
        self._drained = asyncio.Event()
        self._is_closing = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Engine {self._loaded.name}: {len(self._open)} requests open>"

    @property
    def failure(self) -> str | None:
        """Why the engine is dead, None while it lives."""
        return self._worker.failure

    async def start(self) -> None:
        """Start computing; requests may be submitted from now on."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def drain(self, drain_s: float) -> None:
        """Take no more requests; wait until those that are open have ended.

        Args:
            drain_s: Seconds to wait at most.
        """
        self._is_closing = True
        self._note_open()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), drain_s)

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, end those that are open, join thread and processes.

        Args:
            drain_s: Seconds that open requests get to finish; the rest is aborted.
        """
        if self._is_closed:
            return
        if self._loop is None:
            self._crew.close()
            return
        self._is_closed = True
        await self.drain(drain_s)
        for group in self._open:
            self._abort(group)
        await self._drained.wait()
        self._worker.stop()
        await asyncio.to_thread(self._worker.join)
        self._crew.close()

    def submit(self, request: GenerationRequest) -> RequestStream:
        """Queue a request and return its output to come.

        Raises:
            EngineRefused: It can never be served (400), too many wait (429), or the
                engine is closing, dead or not started (503).
        """
        loop = self._take()
        self.limits.check(request)
        group = self._group(request)
        stream = RequestStream(request, lambda: self._abort(group))
        group.stream = weakref.ref(stream)
        self._open.add(group)

        def refuse(why: str) -> None:
            failed = Output(group, EngineFailed(why))
            loop.call_soon_threadsafe(self._receive, [failed])

        self._worker.post(Command(lambda: self._core.add(group), refuse))
        return stream

    async def call(self, function: Callable[[EngineState], T]) -> T:
        """Run *function* between two steps, on the compute thread.

        It must be quick: requests wait meanwhile. Its exceptions come back.

        Raises:
            EngineRefused: The engine is closed or dead (503).
        """
        loop = self._take()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = function(self._state)
                self._state.contents.observer.batch_ended()
            except Exception as error:
                loop.call_soon_threadsafe(_fail, answer, error)
            else:
                loop.call_soon_threadsafe(_answer, answer, result)

        def refuse(why: str) -> None:
            error = EngineRefused("engine_down", why, status=503)
            loop.call_soon_threadsafe(_fail, answer, error)

        self._worker.post(Command(run, refuse))
        return await answer

    def stats(self) -> EngineStats:
        """Return the counters as of the last step or call."""
        return self._core.stats

    def _take(self) -> asyncio.AbstractEventLoop:
        if self.failure is not None:
            raise EngineRefused("engine_down", self.failure, status=503)
        if self._loop is None or self._is_closing:
            state = "closing" if self._is_closing else "not started"
            raise EngineRefused(
                "engine_down", f"the engine is {state}; try another one", status=503
            )
        return self._loop

    def _group(self, request: GenerationRequest) -> SequenceGroup:
        most = self.options.max_waiting + self.options.max_num_seqs
        if len(self._open) >= most:
            raise EngineRefused(
                "queue_full",
                f"{len(self._open)} requests are open (allowed: {most}); try again "
                f"later, or start the engine with a larger max_waiting",
                status=429,
            )
        budget = self._budgets.effective(request.budget or self._state.budget)
        group = SequenceGroup(
            request,
            next(self._arrivals),
            self._clock(),
            self._state.root(request.cache_salt),
            [self._choice(request, index) for index in range(request.n)],
            self.options.block_size,
            budget,
            self._budgets.is_observed(budget),
        )
        self._budgets.check(group, self.options.num_blocks)
        return group

    def _choice(self, request: GenerationRequest, index: int) -> Choice:
        return Choice(
            request,
            index,
            self.limits.longest_output(request),
            self._loaded.model.config.eos_ids,
            self._loaded.tokenizer.stream(),
        )

    def _abort(self, group: SequenceGroup) -> None:
        self._worker.post(Command(lambda: self._core.abort(group), _ignore))

    def _deliver(self, outputs: list[Output]) -> None:
        # On the compute thread; raises RuntimeError when the loop is closed.
        if outputs and self._loop is not None:
            self._loop.call_soon_threadsafe(self._receive, outputs)

    def _receive(self, outputs: list[Output]) -> None:
        for group, result in outputs:
            stream = group.stream() if group.stream is not None else None
            if isinstance(result, EngineFailed):
                self._open.discard(group)
                if stream is not None:
                    stream.fail(result)
                continue
            if result.finish_reason is not None and group.is_finished:
                self._open.discard(group)
            if stream is not None:
                stream.push(result, group.num_cached_tokens or 0)
        self._note_open()

    def _note_open(self) -> None:
        if self._is_closing and not self._open:
            self._drained.set()


def _answer(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _ignore(why: str) -> None:
    """Do nothing: what is closed has ended its requests already."""
