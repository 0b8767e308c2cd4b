"""``POST /v1/completions``: texts or token ids, continued as they are."""

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from warmroute.adapters.embedded.engine.stream import Delta, TokenLogprob
from warmroute.adapters.embedded.server.answering import Job, answer
from warmroute.adapters.embedded.server.body import convert_fields, read_object
from warmroute.adapters.embedded.server.choice import Choice
from warmroute.adapters.embedded.server.fence import REQUEST_ID
from warmroute.adapters.embedded.server.logprobs import describe_for_text
from warmroute.adapters.embedded.server.openai_fields import select_known
from warmroute.adapters.embedded.server.prompts import split_prompts
from warmroute.adapters.embedded.server.sampling import SamplingFields
from warmroute.adapters.embedded.server.serving import Serving

DEFAULT_MAX_TOKENS = 16


class CompletionFields(SamplingFields, kw_only=True):
    """The body of a text completion."""

    prompt: str | list[Any]
    logprobs: int | None = None
    add_special_tokens: bool = True


class CompletionShape:
    """Write choices as texts."""

    __slots__ = ("_fields", "_serving")

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, serving: Serving, fields: CompletionFields) -> None:
        self._serving = serving
        self._fields = fields

    def whole(self, choice: Choice) -> dict[str, object]:
        """Describe a finished choice."""
        described = self._describe(choice, choice.text, choice.logprobs, 0)
        described["finish_reason"] = choice.finish_reason
        described["stop_reason"] = choice.stop_reason
        if self._fields.return_token_ids:
            described["prompt_token_ids"] = choice.prompt_ids
            described["token_ids"] = choice.token_ids
        return described

    def piece(self, choice: Choice, delta: Delta) -> dict[str, object]:
        """Describe what *delta* adds."""
        described = self._describe(choice, delta.text, delta.logprobs, choice.length)
        described["finish_reason"] = delta.finish_reason
        described["stop_reason"] = delta.stop_reason
        if self._fields.return_token_ids:
            if not choice.is_begun:
                described["prompt_token_ids"] = choice.prompt_ids
            described["token_ids"] = delta.token_ids
        return described

    def root(self, choices: Sequence[Choice], *, is_first: bool) -> dict[str, object]:
        """Put nothing beside the choices."""
        return {}

    def _describe(
        self,
        choice: Choice,
        text: str,
        logprobs: Sequence[TokenLogprob],
        offset: int,
    ) -> dict[str, object]:
        described: dict[str, object] | None = None
        if self._fields.logprobs is not None:
            described = describe_for_text(logprobs, self._serving.tokenizer, offset)
        return {"index": choice.index, "text": text, "logprobs": described}


class Completions:
    """The handler."""

    __slots__ = ("_serving",)

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Continue each prompt, in one piece or as a stream."""
        body = await read_object(request)
        known = select_known(body, CompletionFields.__struct_fields__)
        fields = convert_fields(known, CompletionFields)
        self._serving.check_model(fields.model)
        request_id = request[REQUEST_ID]
        most = fields.max_tokens
        if most is None:
            most = DEFAULT_MAX_TOKENS
        requests = [
            fields.to_request(request_id, ids, most, fields.logprobs)
            for ids in await self._encode(fields)
        ]
        shape = CompletionShape(self._serving, fields)
        job = Job(f"cmpl-{request_id}", fields, requests, shape)
        return await answer(request, self._serving, job)

    async def _encode(self, fields: CompletionFields) -> list[list[int]]:
        special = fields.add_special_tokens
        return [
            await self._serving.encode(prompt, add_special=special)
            if isinstance(prompt, str)
            else prompt
            for prompt in split_prompts(fields.prompt)
        ]
