"""The shapes of request bodies: which path carries which prompt, and where."""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec

from warmroute.proxy.prompt.batch import Batch
from warmroute.proxy.prompt.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    EmbeddingsBody,
    GenerateBody,
    MessagesBody,
    PairsBody,
    Part,
    ResponsesBody,
)
from warmroute.proxy.prompt.transcript import Transcript, digest_json, join_plain_chat


class Shape:
    """One kind of body.

    Args:
        kind: Name in metrics and records.
        decode: Turns the bytes into the struct of this kind.
        collect: Puts the prompts into a batch; tells whether there are any.
        has_stream_options: Usage on a stream must be asked for (OpenAI's older APIs).
        join: Returns the canonical bytes of a body of the commonest form in one
            step, None for all others; the bytes are those that *collect* gives.
    """

    __slots__ = ("collect", "decode", "has_stream_options", "join", "kind")

    def __init__(
        self,
        kind: str,
        decode: Callable[[bytes], Body],
        collect: Callable[[Any, Batch], bool],
        has_stream_options: bool = False,
        join: Callable[[Any], bytes | None] | None = None,
    ) -> None:
        self.kind = kind
        self.decode = decode
        self.collect = collect
        self.has_stream_options = has_stream_options
        self.join = join

    def __repr__(self) -> str:
        return f"<Shape {self.kind}>"


def collect_chat(body: ChatBody, batch: Batch) -> bool:
    """Collect the conversation as one prompt, tools first."""
    if body.messages is None:
        return False
    transcript = Transcript()
    if body.tools:
        transcript.add_json(b"tools", body.tools)
    if body.functions:
        transcript.add_json(b"functions", body.functions)
    if body.documents:
        transcript.add_json(b"documents", body.documents)
    if body.chat_template:
        transcript.add_json(b"chat_template", body.chat_template)
    if body.chat_template_kwargs:
        transcript.add_json(b"chat_template_kwargs", body.chat_template_kwargs)
    if body.reasoning_effort:
        transcript.add_json(b"reasoning_effort", body.reasoning_effort)
    transcript.add_messages(body.messages)
    return _add_transcript(transcript, batch)


def collect_completion(body: CompletionBody, batch: Batch) -> bool:
    """Collect raw texts or token ids."""
    return batch.add_prompts(body.prompt)


def join_completion(body: CompletionBody) -> bytes | None:
    """Return the bytes of a completion of one raw text, None otherwise."""
    return body.prompt.encode() if type(body.prompt) is str else None


def collect_responses(body: ResponsesBody, batch: Batch) -> bool:
    """Collect tools, instructions and input items as one prompt."""
    if body.input is None:
        return False
    transcript = Transcript()
    transcript.add_json(b"tools", body.tools)
    transcript.add_json(b"reasoning", body.reasoning)
    if body.instructions is not None:
        transcript.add_message("system", body.instructions)
    if isinstance(body.input, str):
        transcript.add_message("user", body.input)
    else:
        transcript.add_items(body.input)
    return _add_transcript(transcript, batch)


def collect_embeddings(body: EmbeddingsBody, batch: Batch) -> bool:
    """Collect the inputs, or the chat where messages stand in their place."""
    return batch.add_prompts(body.input) or collect_chat(body, batch)


def collect_pairs(body: PairsBody, batch: Batch) -> bool:
    """Collect query and document of each pair; a single side is repeated."""
    firsts = _side(body.text_1 if body.query is None else body.query, batch)
    seconds = _side(body.documents or body.text_2 or body.items, batch)
    if not firsts or not seconds:
        return False
    heads = firsts if len(firsts) > 1 else repeat(firsts[0], len(seconds))
    tails = seconds if len(seconds) > 1 else repeat(seconds[0], len(firsts))
    for head, tail in zip(heads, tails, strict=False):
        batch.add_pair(head, tail)
    return True


def collect_messages(body: MessagesBody, batch: Batch) -> bool:
    """Collect Anthropic's tools, system and messages as one prompt."""
    if body.messages is None:
        return False
    transcript = Transcript()
    transcript.add_json(b"tools", body.tools)
    if body.system is not None:
        transcript.add_message("system", body.system)
    transcript.add_messages(body.messages)
    return _add_transcript(transcript, batch)


def collect_generate(body: GenerateBody, batch: Batch) -> bool:
    """Collect texts or token ids; media enter the root of the hash chain."""
    media = [*map(digest_json, (body.image_data, body.video_data, body.audio_data))]
    if any(media):
        batch.has_media = True
        batch.media = b",".join(media).decode()
    return (
        batch.add_prompts(body.input_ids)
        or batch.add_prompts(body.token_ids)
        or batch.add_prompts(body.text)  # type: ignore[arg-type]
    )


def collect_nothing(body: Body, batch: Batch) -> bool:
    """Collect nothing: the path carries no prompt that enters a KV cache."""
    return False


def _add_transcript(transcript: Transcript, batch: Batch) -> bool:
    batch.has_media = transcript.has_media
    batch.add_text(transcript.to_bytes())
    return True


def _side(side: str | Sequence[Part | str] | None, batch: Batch) -> list[bytes]:
    texts = []
    for item in [side] if isinstance(side, str) else side or ():
        transcript = Transcript()
        transcript.add_content([item])
        texts.append(transcript.to_bytes())
        batch.has_media |= transcript.has_media
    return texts


decode_fields = msgspec.json.Decoder(Body).decode
_decode_chat = msgspec.json.Decoder(ChatBody).decode
_decode_completion = msgspec.json.Decoder(CompletionBody).decode
_decode_responses = msgspec.json.Decoder(ResponsesBody).decode
_decode_embeddings = msgspec.json.Decoder(EmbeddingsBody).decode
_decode_pairs = msgspec.json.Decoder(PairsBody).decode
_decode_messages = msgspec.json.Decoder(MessagesBody).decode
_decode_generate = msgspec.json.Decoder(GenerateBody).decode

PROMPTLESS: Final = Shape("none", decode_fields, collect_nothing)
_CHAT: Final = Shape("chat", _decode_chat, collect_chat, True, join_plain_chat)
_SHAPES: Final = {
    "completions": Shape(
        "completions", _decode_completion, collect_completion, True, join_completion
    ),
    "responses": Shape("responses", _decode_responses, collect_responses),
    "embeddings": Shape("embeddings", _decode_embeddings, collect_embeddings),
    "classify": Shape("classify", _decode_embeddings, collect_embeddings),
    "pooling": Shape("pooling", _decode_embeddings, collect_embeddings),
    "rerank": Shape("rerank", _decode_pairs, collect_pairs),
    "score": Shape("score", _decode_pairs, collect_pairs),
    "messages": Shape("messages", _decode_messages, collect_messages),
    "generate": Shape("generate", _decode_generate, collect_generate),
    "count_tokens": Shape("count_tokens", decode_fields, collect_nothing),
    "tokenize": Shape("tokenize", decode_fields, collect_nothing),
    "detokenize": Shape("detokenize", decode_fields, collect_nothing),
    "abort_request": Shape("abort_request", decode_fields, collect_nothing),
}
_MAX_PATHS: Final = 256
_MAX_PATH_CHARS: Final = 128
known_paths: dict[str, Shape] = {}
"""The paths met last, for a look-up without a call; `find_shape` fills it."""


def find_shape(path: str) -> Shape:
    """Return the shape of the bodies that a path takes, by the path's end.

    Prefixes, a trailing slash and a query are allowed. The paths met last are
    remembered. O(1).
    """
    shape = known_paths.get(path)
    if shape is None:
        shape = _match(path)
        if len(path) <= _MAX_PATH_CHARS:
            if len(known_paths) >= _MAX_PATHS:
                del known_paths[next(iter(known_paths))]
            known_paths[path] = shape
    return shape


def find_response_id(path: str) -> str | None:
    """Return the id in ``/v1/responses/{id}[/cancel]``, None elsewhere."""
    _, found, rest = path.partition("/responses/resp_")
    if not found:
        return None
    return "resp_" + rest.partition("?")[0].partition("/")[0]


def _match(path: str) -> Shape:
    front, _, last = path.partition("?")[0].rstrip("/").rpartition("/")
    if last == "completions" and front.rpartition("/")[2] == "chat":
        return _CHAT
    return _SHAPES.get(last, PROMPTLESS)
