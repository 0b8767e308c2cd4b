"""Comparing our tokens with the engines', at start and now and then."""

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from warmroute.adapters.tokens.errors import ModelError
from warmroute.policies.errors import AdapterError
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.prompt.engine_tokens import (
    EngineTokens,
    first_difference,
    questions,
)
from warmroute.proxy.prompt.exact_bodies import ExactChat, ExactCompletion
from warmroute.proxy.prompt.exact_model import ExactModel
from warmroute.proxy.prompt.names import find_base

logger = logging.getLogger(__name__)

SAMPLE_EVERY = 200
SAMPLE_GAP_S = 10.0
RETRY_S = 30.0
MAX_MISCOUNTED = 3


class Trials:
    """Try each model on each engine that serves it, and on a sample of the traffic.

    A model that an engine makes other tokens of is not trusted until that engine
    restarts, goes, or the tokenizer is changed. An engine that offers no way to ask,
    or has not answered, speaks neither for nor against.

    Args:
        fleet: Whose engines are tried.
        engines: Asks them.
        models: By configured name; read anew each time.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        engines: EngineTokens,
        models: Mapping[str, ExactModel],
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._engines = engines
        self._models = models
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._tried: dict[tuple[str, str], tuple[ExactModel, int]] = {}
        self._miscounted: Counter[tuple[str, str]] = Counter()
        self._num_seen = 0
        self._sampled_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Trials [{len(self._tasks)} running]>"

    def restart(self) -> None:
        """Try everything anew."""
        self._tried.clear()
        for backend in self._fleet.backends.values():
            self.backend_changed(backend)

    def backend_changed(self, backend: Backend) -> None:
        """Try the models of a backend that is up and was not tried as it is now."""
        if backend.state != "up":
            return
        for model in self._models.values():
            served = _served_name(model, backend)
            if served is None or model.renderer is None:
                continue
            key, mark = (model.name, backend.name), (model, backend.incarnation)
            if self._tried.get(key) != mark:
                self._tried[key] = mark
                self._miscounted.pop((model.name, backend.name), None)
                self._start(self._try(model, backend, served))

    def backend_removed(self, backend: Backend) -> None:
        """Forget the verdicts of a backend."""
        for model in self._models.values():
            model.verdicts.pop(backend.name, None)
            self._tried.pop((model.name, backend.name), None)
            self._miscounted.pop((model.name, backend.name), None)

    def sample(
        self,
        model: ExactModel,
        fields: ExactChat | ExactCompletion,
        made: Sequence["array[int]"],
    ) -> None:
        """Compare a prompt of the traffic, one of 200 and one in 10 s at most."""
        self._num_seen += 1
        if self._num_seen < SAMPLE_EVERY or len(made) != 1:
            return
        now = self._clock()
        if now - self._sampled_at < SAMPLE_GAP_S:
            return
        self._num_seen, self._sampled_at = 0, now
        self._start(self._compare(model, fields, made[0]))

    def miscounted(self, model: ExactModel, backend: str, ours: int, num: int) -> None:
        """Learn that an engine reports another number of tokens than we made.

        The third time the model is not trusted any more. That needs no way to ask,
        so it holds for every engine.
        """
        key = (model.name, backend)
        self._miscounted[key] += 1
        if self._miscounted[key] == MAX_MISCOUNTED:
            model.verdicts[backend] = False
            detail = f"{ours} tokens here, {num} by the engine's own report"
            _warn(model, backend, "usage of the traffic", detail)

    async def close(self) -> None:
        """Stop what is running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, trial: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(trial)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, model: ExactModel, backend: Backend, served: str) -> None:
        """Try one model on one engine until it answers, or offers no way to ask."""
        from warmroute.proxy.prompt.parity import TEXT, check_parity

        assert model.renderer is not None  # looked at before
        mark = (model, backend.incarnation)
        ask = partial(self._engines.ask, backend)
        while self._tried.get((model.name, backend.name)) == mark:
            verdicts = await check_parity(model.renderer, served, ask)
            differing = [one for one in verdicts if one.outcome == "differs"]
            if differing:
                first = differing[0]
                _warn(model, backend.name, first.check, first.detail)
            if differing or any(one.outcome == "equal" for one in verdicts):
                if differing or any(one.check != TEXT for one in verdicts):
                    model.verdicts[backend.name] = not differing
                # Of an engine that tells of texts only, chats stay unknown.
                return
            if not verdicts:
                return
            await asyncio.sleep(RETRY_S)

    async def _compare(
        self,
        model: ExactModel,
        fields: ExactChat | ExactCompletion,
        ours: "array[int]",
    ) -> None:
        name = fields.model if isinstance(fields.model, str) else None
        try:
            question = next(questions(fields, name))
            backend, theirs = await self._engines.ask_any(name, question)
        except (ModelError, AdapterError):
            return
        at = first_difference(ours, theirs)
        if at is None:
            return
        model.verdicts[backend.name] = False
        detail = f"from token {at} on; {len(ours)} here, {len(theirs)} in the engine"
        _warn(model, backend.name, "a prompt of the traffic", detail)


def _warn(model: ExactModel, backend: str, check: str, difference: str) -> None:
    logger.warning(
        "tokenizer_differs",
        extra={
            "model": model.name,
            "backend": backend,
            "check": check,
            "difference": difference,
            "consequence": "its prompts are estimated until the engine restarts; name "
            "the tokenizer and the chat template that the engine uses",
        },
    )


def _served_name(model: ExactModel, backend: Backend) -> str | None:
    """Return the name by which a backend serves the model itself, not a LoRA."""
    card = backend.models.get(model.name)
    if card is not None and card.parent is None:
        return model.name
    base = find_base(backend.models)
    return base if base == model.name else None
