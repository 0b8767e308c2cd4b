"""``POST /v1/chat/completions``: messages, through a chat template."""

from collections.abc import Sequence
from typing import Annotated

from aiohttp import web
from msgspec import Meta

from warmroute.adapters.embedded.engine.request import MAX_LOGPROBS, EngineRefused
from warmroute.adapters.embedded.engine.stream import Delta, TokenLogprob
from warmroute.adapters.embedded.server.answering import Job, answer
from warmroute.adapters.embedded.server.body import convert_fields, read_object
from warmroute.adapters.embedded.server.chat_prompt import ChatPrompt
from warmroute.adapters.embedded.server.choice import Choice
from warmroute.adapters.embedded.server.errors import BadField
from warmroute.adapters.embedded.server.fence import REQUEST_ID
from warmroute.adapters.embedded.server.logprobs import describe_for_chat
from warmroute.adapters.embedded.server.openai_fields import select_known
from warmroute.adapters.embedded.server.sampling import SamplingFields
from warmroute.adapters.embedded.server.serving import Serving


class ChatFields(SamplingFields, kw_only=True):
    """The body of a chat completion, less its prompt."""

    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] = 0

    def wanted_logprobs(self) -> int | None:
        """Return what the engine is asked for.

        Raises:
            BadField: ``top_logprobs`` stands alone.
        """
        if self.top_logprobs and not self.logprobs:
            raise BadField("top_logprobs", "needs logprobs to be true")
        return self.top_logprobs if self.logprobs else None

    def wanted_tokens(self) -> int | None:
        """Return the most tokens to generate; None is as many as fit."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer


_KNOWN = (*ChatFields.__struct_fields__, *ChatPrompt.__struct_fields__)


class ChatShape:
    """Write choices as messages."""

    __slots__ = ("_fields", "_serving")

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, serving: Serving, fields: ChatFields) -> None:
        self._serving = serving
        self._fields = fields

    def whole(self, choice: Choice) -> dict[str, object]:
        """Describe a finished choice."""
        described: dict[str, object] = {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text},
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._fields.return_token_ids:
            described["token_ids"] = choice.token_ids
        return described

    def piece(self, choice: Choice, delta: Delta) -> dict[str, object]:
        """Describe what *delta* adds; the first piece tells the role."""
        role = {} if choice.is_begun else {"role": "assistant"}
        described: dict[str, object] = {
            "index": choice.index,
            "delta": {**role, "content": delta.text},
            "logprobs": self._logprobs(delta.logprobs),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            described["stop_reason"] = delta.stop_reason
        if self._fields.return_token_ids:
            described["token_ids"] = delta.token_ids
        return described

    def root(self, choices: Sequence[Choice], *, is_first: bool) -> dict[str, object]:
        """Put the prompt's token ids beside the choices, when asked for."""
        if is_first and self._fields.return_token_ids:
            return {"prompt_token_ids": choices[0].prompt_ids}
        return {}

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, object] | None:
        if not self._fields.logprobs:
            return None
        return describe_for_chat(logprobs, self._serving.tokenizer)


class Chat:
    """The handler."""

    __slots__ = ("_serving",)

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer the last message, in one piece or as a stream."""
        body = await read_object(request)
        known = select_known(body, _KNOWN)
        fields = convert_fields(known, ChatFields)
        prompt = convert_fields(known, ChatPrompt)
        self._serving.check_model(fields.model)
        request_id = request[REQUEST_ID]
        asked = fields.to_request(
            request_id,
            await prompt.encode(self._serving),
            fields.wanted_tokens(),
            fields.wanted_logprobs(),
            prompt.turn,
        )
        shape = ChatShape(self._serving, fields)
        job = Job(f"chatcmpl-{request_id}", fields, [asked], shape)
        try:
            return await answer(request, self._serving, job)
        except EngineRefused as error:
            raise _in_words_of_chat(error, fields) from error


def _in_words_of_chat(error: EngineRefused, fields: ChatFields) -> EngineRefused:
    """Blame the field that the client sent, not the one that the engine got."""
    message, param = error.message, error.param
    if param == "prompt":
        param = "messages"
    if fields.max_completion_tokens is not None:
        message = message.replace("max_tokens", "max_completion_tokens")
        param = "max_completion_tokens" if param == "max_tokens" else param
    return EngineRefused(error.code, message, param, error.status)
