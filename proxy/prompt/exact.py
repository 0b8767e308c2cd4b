"""Prompts in the grade *exact*: the tokens that the engine will see.

Nothing here fails a request. What cannot be known for certain, or not in time, stays
an estimate, and is counted with its reason.
"""

import asyncio
import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from warmroute.adapters.tokens.errors import ModelError, NotExact
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.prompt.batch import MAX_PIECES
from warmroute.proxy.prompt.engine_tokens import EngineTokens
from warmroute.proxy.prompt.exact_bodies import (
    ExactChat,
    ExactCompletion,
    decode_exact,
)
from warmroute.proxy.prompt.exact_model import ExactModel
from warmroute.proxy.prompt.memo import TokenMemo
from warmroute.proxy.prompt.prompt import Piece, Prompt
from warmroute.proxy.prompt.roots import Roots
from warmroute.proxy.prompt.trials import Trials
from warmroute.proxy.prompt.workers import Busy, Workers

if TYPE_CHECKING:
    from warmroute.proxy.prompt.encoder import Draft

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0
INLINE_BYTES = 16_384
INLINE_CHARS = 512
"""New text up to here is tokenized on the loop: 0.2 ms, while a way to a thread and
back takes 0.05 ms plus two changes of the thread that runs (tests/bench/memo.py,
2-core AMD EPYC VM, 2026-11-29)."""

_KINDS = ("chat", "completions")

Fields = ExactChat | ExactCompletion


class ExactPrompts:
    """Make the prompts of configured models exact.

    Args:
        fleet: Whose engines are asked, and compared with.
        roots: Of the reader; an exact prompt has the same as one of token ids.
        memo: What was tokenized before.
        clock: Monotonic seconds.

    Attributes:
        memo: As given.
        models: By configured name.
        fallbacks: Prompts that stayed estimates, by model and reason.
        num_exact: Prompts that became exact, by model.
    """

    def __init__(
        self,
        fleet: Fleet,
        roots: Roots,
        memo: TokenMemo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roots = roots
        self.memo = memo
        self._engines = EngineTokens(fleet, self.memo, clock)
        self._workers = Workers()
        self.models: dict[str, ExactModel] = {}
        self.fallbacks: Counter[tuple[str, str]] = Counter()
        self.num_exact: Counter[str] = Counter()
        self._trials = Trials(fleet, self._engines, self.models, clock)

    def __repr__(self) -> str:
        return f"<ExactPrompts {list(self.models.values())}>"

    def configure(self, models: Mapping[str, ExactModel]) -> None:
        """Take over the models; those that stay the same keep their verdicts."""
        self.models.clear()
        self.models.update(models)
        self._trials.restart()

    def changed(self, backend: Backend) -> None:
        """Learn that a backend came up, restarted, or serves something else."""
        self._trials.backend_changed(backend)

    def removed(self, backend: Backend) -> None:
        """Forget what a backend that is gone had to say."""
        self._trials.backend_removed(backend)

    async def close(self) -> None:
        """Stop everything that runs in the background."""
        self._workers.close()
        await self._trials.close()

    def parity(self) -> Iterator[tuple[str, str, bool]]:
        """Yield model, backend, and whether their tokens agree, where it is known."""
        for name, model in self.models.items():
            for backend, agrees in model.verdicts.items():
                yield name, backend, agrees

    def miscounted(self, prompt: Prompt, backend: str, num_tokens: int) -> None:
        """Learn that an engine counted other tokens in an exact prompt."""
        model = self._model_of(prompt)
        if model is not None and model.is_trusted and prompt.kind in _KINDS:
            self._trials.miscounted(model, backend, prompt.num_tokens, num_tokens)

    def begin(self, prompt: Prompt, body: bytes) -> "Unfinished | None":
        """Make *prompt* exact now, or return what has to be waited for.

        None means that it is as exact as it will be. Raises nothing.
        """
        model = self._find(prompt)
        if model is None:
            return None
        draft = None
        if model.renderer is not None and len(body) <= INLINE_BYTES:
            try:
                fields = decode_exact(prompt.kind, body)
                draft = model.renderer.draft(fields)
                if draft.missing_chars <= INLINE_CHARS:
                    made = model.renderer.encoder.complete(draft)
                    self._apply(model, prompt, fields, made)
                    return None
            except Exception as error:  # of a template, it may be anything
                self._fell_back(model, error)
                return None
            return Unfinished(self, model, prompt, body, fields, draft)
        return Unfinished(self, model, prompt, body, None, None)

    async def read(self, prompt: Prompt, body: bytes) -> None:
        """Make *prompt* exact where that works in time; raises nothing."""
        pending = self.begin(prompt, body)
        if pending is not None:
            await pending.finish()

    def _find(self, prompt: Prompt) -> ExactModel | None:
        if (
            prompt.grade != "estimated"
            or prompt.has_media
            or prompt.kind not in _KINDS
            or not self.models
        ):
            return None
        model = self._model_of(prompt)
        if model is not None and not model.is_trusted:
            self.fallbacks[model.name, "differs"] += 1
            return None
        return model

    def _model_of(self, prompt: Prompt) -> ExactModel | None:
        name = prompt.model or ""
        model = self.models.get(name)
        if model is None:
            model = self.models.get(self._roots.names.resolve(name)[0])
        return model

    async def finish(self, pending: "Unfinished") -> None:
        """Do what `begin` left; see `Pending.finish`."""
        model = pending.model
        try:
            async with asyncio.timeout(PATIENCE_S):
                fields, made = await self._make(pending)
            self._apply(model, pending.prompt, fields, made)
        except Exception as error:  # as in `begin`
            self._fell_back(model, error)

    async def _make(
        self, pending: "Unfinished"
    ) -> tuple[Fields, tuple["array[int]", ...]]:
        renderer, body = pending.model.renderer, pending.body
        if renderer is None:
            fields = decode_exact(pending.prompt.kind, body)
            return fields, await self._engines.find(fields)
        job: Callable[[], tuple[Fields, tuple[array[int], ...]]]
        if pending.fields is not None and pending.draft is not None:
            known, draft = pending.fields, pending.draft
            job = partial(_complete, pending.model, known, draft)
        else:
            job = partial(_render, pending.model, pending.prompt.kind, body)
        return await self._workers.run(len(body), job)

    def _apply(
        self,
        model: ExactModel,
        prompt: Prompt,
        fields: Fields,
        made: tuple["array[int]", ...],
    ) -> None:
        name = fields.model if isinstance(fields.model, str) else ""
        root = self._roots.find(name, "exact", fields)
        pieces = tuple(Piece(len(one), root, one) for one in made if one)
        if not pieces or len(pieces) > MAX_PIECES:
            raise NotExact("no prompt, or more of them than are kept")
        prompt.pieces = pieces
        prompt.num_tokens = sum(piece.num_tokens for piece in pieces)
        prompt.grade = "exact"
        self.num_exact[model.name] += 1
        if model.renderer is not None:
            self._trials.sample(model, fields, made)

    def _fell_back(self, model: ExactModel, error: Exception) -> None:
        reason = _reason(error)
        key = (model.name, reason)
        self.fallbacks[key] += 1
        if reason == "failed" and self.fallbacks[key] == 1:
            # Without its text, which may hold some of the prompt.
            kind = type(error).__name__
            logger.error(
                "exact_prompt_failed", extra={"model": model.name, "error": kind}
            )


class Unfinished:
    """A prompt whose tokens are still being made."""

    __slots__ = ("_owner", "body", "draft", "fields", "model", "prompt")

    def __init__(
        self,
        owner: ExactPrompts,
        model: ExactModel,
        prompt: Prompt,
        body: bytes,
        fields: Fields | None,
        draft: "Draft | None",
    ) -> None:
        self._owner = owner
        self.model = model
        self.prompt = prompt
        self.body = body
        self.fields = fields
        self.draft = draft

    def __repr__(self) -> str:
        return f"<Unfinished {self.model.name} [{len(self.body)} bytes]>"

    async def finish(self) -> None:
        """Make the prompt exact where that works in time; raises nothing."""
        await self._owner.finish(self)


def _complete(
    model: ExactModel, fields: Fields, draft: "Draft"
) -> tuple[Fields, tuple["array[int]", ...]]:
    assert model.renderer is not None  # drafts come from there
    return fields, model.renderer.encoder.complete(draft)


def _render(
    model: ExactModel, kind: str, body: bytes
) -> tuple[Fields, tuple["array[int]", ...]]:
    assert model.renderer is not None
    fields = decode_exact(kind, body)
    return _complete(model, fields, model.renderer.draft(fields))


def _reason(error: Exception) -> str:
    if isinstance(error, Busy):
        return "busy"
    if isinstance(error, NotExact):
        return "uncertain"
    if isinstance(error, ModelError):
        return "refused"
    return "timeout" if isinstance(error, TimeoutError) else "failed"
