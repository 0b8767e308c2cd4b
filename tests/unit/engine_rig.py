"""The engine's core on a shadow memory that knows what every slot should hold."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from warmroute.adapters.embedded.engine.choice import Choice
from warmroute.adapters.embedded.engine.core import EngineCore
from warmroute.adapters.embedded.engine.options import EngineOptions
from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.sequence import SequenceGroup
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.engine.stream import EngineFailed

VOCAB = 50
EOS = 0


class ShadowStore:
    """Remember for each slot the whole prefix whose last token it holds."""

    def __init__(self, num_pages: int, block_size: int) -> None:
        self.block_size = block_size
        self.pages: list[dict[int, tuple[int, ...]]] = [{} for _ in range(num_pages)]
        self.copies = 0

    def copy_page(self, source: int, target: int) -> None:
        self.pages[target] = dict(self.pages[source])
        self.copies += 1

    def read_page(self, page: int) -> Any:
        return dict(self.pages[page])

    def write_page(self, page: int, content: Any) -> None:
        self.pages[page] = dict(content)


class ShadowRunner:
    """Write prefixes into slots, and check all that a sequence would attend to.

    The next token depends on the whole prefix, so a sequence that read a wrong slot
    or lost a token would go another way.
    """

    def __init__(self, store: ShadowStore) -> None:
        self.store = store
        self.tokens_a_step: list[int] = []
        self.fail_next: Exception | None = None
        self.fail_on: Callable[[list[Any]], bool] = lambda work: False

    def run(self, work: list[Any]) -> Any:
        self.tokens_a_step.append(sum(one.num_tokens for one in work))
        if self.fail_next is not None or self.fail_on(work):
            error, self.fail_next = self.fail_next, None
            raise error or RuntimeError("no more numbers")
        for one in work:
            self._write(one.sequence, one.num_tokens)
        rows = [self._row(one.sequence) for one in work if one.is_sampled]
        return np.array(rows, np.float32).reshape(len(rows), VOCAB)

    def _write(self, sequence: Any, count: int) -> None:
        prefix, size = tuple(sequence.tokens), self.store.block_size
        if sequence.budgeted is not None:
            return
        for at in range(sequence.num_computed + count):
            page = self.store.pages[sequence.table.pages[at // size]]
            if at >= sequence.num_computed:
                page[at % size] = prefix[: at + 1]
            assert page[at % size] == prefix[: at + 1], f"slot {at} of {sequence!r}"

    def _row(self, sequence: Any) -> Any:
        row = np.zeros(VOCAB, np.float32)
        row[next_token(tuple(sequence.tokens))] = 100
        return row


class Letters:
    """Turn token 1 into ``a``, 2 into ``b`` and so on."""

    def push(self, token_id: int) -> str:
        return chr(ord("a") + (token_id - 1) % 26) if token_id else ""

    def flush(self) -> str:
        return ""


class FakeBudgets:
    """Token eviction that keeps nothing but counts its pages."""

    def __init__(self, pages: int = 2) -> None:
        self.pages = pages
        self.started: list[Any] = []
        self.closed = 0
        self.pool: Any = None

    def pages_needed(self, sequence: Any) -> int:
        return self.pages if sequence.group.budget else 0

    def observe(self, sequence: Any) -> None:
        raise AssertionError("the runner is a shadow")

    def start(self, sequence: Any) -> None:
        if sequence.group.budget and sequence.budgeted is None:
            self.started.append(sequence)
            sequence.budgeted = SimpleNamespace(close=self._close)
            sequence.table.free(self.pool)

    def _close(self) -> None:
        self.closed += 1


class Rig:
    """A core with a clock that counts and helpers to run it to an end."""

    def __init__(self, observer: Any = None, kv: Any = None, **settings: Any) -> None:
        given = {"num_blocks": 20, "block_size": 4, "max_num_seqs": 4}
        options = EngineOptions(**{**given, "max_batched_tokens": 16, **settings})
        self.options = options
        self.now = 0.0
        self.store = ShadowStore(options.num_pages, options.block_size)
        self.state = EngineState(self.store, options, "m", lambda: self.now, kv)
        self.runner = ShadowRunner(self.store)
        self.budgets = FakeBudgets()
        self.budgets.pool = self.state.pool
        self.core = EngineCore(self.state, self.runner, self.budgets, observer)
        self.outputs: dict[str, list[Any]] = {}
        self.arrivals = 0

    @property
    def scheduler(self) -> Any:
        return self.state.scheduler

    def add(self, name: str, prompt: list[int], **fields: Any) -> SequenceGroup:
        given = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, **fields}
        request = GenerationRequest(name, prompt, **given)
        limit = given["max_tokens"]
        choices = [
            Choice(request, at, limit, (EOS,), Letters()) for at in range(request.n)
        ]
        group = SequenceGroup(
            request,
            self.arrivals,
            self.now,
            self.state.root(request.cache_salt),
            choices,
            self.options.block_size,
            request.budget,
            bool(request.budget) and request.budget == "observed",
        )
        self.arrivals += 1
        self.core.add(group)
        return group

    def step(self) -> None:
        self.now += 1
        self.core.step()
        for group, result in self.core.take_outputs():
            self.outputs.setdefault(group.request.request_id, []).append(result)

    def run(self, most: int = 2_000) -> None:
        for _ in range(most):
            if self.core.is_idle:
                return
            self.step()
        raise AssertionError(f"not done after {most} steps: {self.scheduler!r}")

    def tokens(self, name: str, index: int = 0) -> list[int]:
        return [
            token
            for delta in self.outputs.get(name, [])
            if not isinstance(delta, EngineFailed) and delta.index == index
            for token in delta.token_ids
        ]

    def reasons(self, name: str) -> list[str]:
        return [
            "failed" if isinstance(one, EngineFailed) else one.finish_reason
            for one in self.outputs.get(name, [])
            if isinstance(one, EngineFailed) or one.finish_reason
        ]

    def check(self) -> None:
        """Assert what must hold between any two steps."""
        self.state.pool.check_integrity()
        running, waiting = self.scheduler.running, self.scheduler.waiting
        for items in (running, waiting):
            assert [one.key for one in items] == sorted(one.key for one in items)
        assert sum(one.seats for one in running) <= self.options.max_num_seqs
        assert all(not one.table.pages and not one.private.pages for one in waiting)
        assert self.runner.tokens_a_step[-1:] <= [self.options.max_batched_tokens]
        if self.core.is_idle:
            assert self.state.pool.num_referenced == self.state.pool.num_held


def next_token(prefix: tuple[int, ...]) -> int:
    return hash(prefix) % (VOCAB - 1) + 1


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tuple(tokens)))
    return tokens[len(prompt) :]
