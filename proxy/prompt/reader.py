"""Request bodies on their way to prompts, in the grade that can be known."""

from collections.abc import Iterable
from typing import Final

import msgspec

from warmroute.policies.kv.blocks import Grade as KnownGrade
from warmroute.proxy.config import ModelConfig
from warmroute.proxy.prompt.batch import BYTES_PER_ID, Batch
from warmroute.proxy.prompt.bodies import UNREADABLE, Body, read_any_json
from warmroute.proxy.prompt.density import PRIOR_BYTES_PER_TOKEN, Density, Sums
from warmroute.proxy.prompt.form import find_fields
from warmroute.proxy.prompt.prompt import Grade, Piece, Prompt
from warmroute.proxy.prompt.roots import Roots
from warmroute.proxy.prompt.shapes import (
    Shape,
    decode_fields,
    find_response_id,
    find_shape,
    known_paths,
)

_JSON: Final = b"application/json"


class PromptReader:
    """Read request bodies, and learn how many bytes make a token."""

    __slots__ = ("_density", "_tokenizers", "roots")

    def __init__(self, models: Iterable[ModelConfig] = ()) -> None:
        self._density = Density()
        self.roots = Roots()
        self._tokenizers = {model.name: model.tokenizer for model in models}

    def __repr__(self) -> str:
        return f"<PromptReader [{self._density!r}]>"

    def read(
        self, path: str, content_type: bytes, content_encoding: bytes, body: bytes
    ) -> Prompt:
        """Return what the body asks for; never raises, whatever it holds.

        Costs one pass over the body. A body that is not JSON of the path's shape
        gives grade ``none``, with model and stream where they can be found.
        """
        shape = known_paths.get(path) or find_shape(path)
        if not body or (content_encoding and not _is_plain(content_encoding)):
            return Prompt(shape.kind, pin=find_response_id(path))
        if content_type != _JSON and _is_form(content_type):
            return _read_form(shape, content_type, body)
        decode, join = shape.decode, shape.join
        try:
            fields = decode(body)
            if join is not None and (text := join(fields)):
                return self._read_text(shape, fields, text)
            prompt = self._read_batch(shape, fields)
        except UNREADABLE:
            prompt = _read_leniently(shape, body)
        if prompt.pin is None and shape.kind == "none":
            prompt.pin = find_response_id(path)
        return prompt

    def configure(self, models: Iterable[ModelConfig]) -> None:
        """Take over a new list of models; a changed tokenizer is learned anew."""
        before = self._tokenizers
        self._tokenizers = {model.name: model.tokenizer for model in models}
        for name, tokenizer in self._tokenizers.items():
            if before.get(name, tokenizer) != tokenizer:
                self._density.forget(name)

    def learn(self, prompt: Prompt, prompt_tokens: int) -> None:
        """Take in the engine's count of the tokens of an estimated prompt.

        Prompts with media, and those that continue a stored response, do not
        teach: the engine counts more than the text seen here.
        """
        sums = prompt.sums
        if sums is not None:
            sums.learn(prompt.text_bytes, prompt_tokens)
        elif (
            prompt.grade == "estimated"
            and not prompt.has_media
            and (prompt.pin is None or prompt.kind != "responses")
        ):
            self._density.learn(prompt.model, prompt.text_bytes, prompt_tokens)

    def bytes_per_token(self, model: str | None) -> float:
        """Return the current estimate for a model, 4.0 before any report."""
        return self._density.bytes_per_token(model)

    def _read_text(self, shape: Shape, fields: Body, text: bytes) -> Prompt:
        """Describe a body of one text; equals `_read_batch`, in fewer steps."""
        model = fields.model
        name = model if type(model) is str else ""
        sums = self._density.find(name)
        rate = PRIOR_BYTES_PER_TOKEN if sums is None else sums.rate
        if (
            fields.cache_salt is not None
            or fields.lora_path is not None
            or fields.extra_key is not None
            or (root := self.roots.known_text(name)) is None
        ):
            root = self.roots.find(name, "estimated", fields)
        num_bytes = len(text)
        num_tokens = round(num_bytes / rate) or 1
        return _describe(
            shape,
            fields,
            "estimated",
            (Piece(num_tokens, root, None, text),),
            num_tokens,
            False,
            num_bytes,
            rate,
            sums,
        )

    def _read_batch(self, shape: Shape, fields: Body) -> Prompt:
        batch = Batch()
        if not shape.collect(fields, batch):
            return _describe(shape, fields)
        model = fields.model
        name = model if type(model) is str else ""
        sums = self._density.find(name)
        rate = PRIOR_BYTES_PER_TOKEN if sums is None else sums.rate
        grade: KnownGrade = "exact" if batch.is_exact else "estimated"
        root = self.roots.find(name, grade, fields, batch.media)
        num_tokens, pieces = _weigh(batch, root, rate)
        is_continued = shape.kind == "responses" and fields.pin_key() is not None
        return _describe(
            shape,
            fields,
            grade,
            pieces,
            num_tokens,
            batch.has_media,
            0 if batch.is_exact else batch.kept_bytes + batch.spare_bytes,
            rate,
            None if batch.is_exact or batch.has_media or is_continued else sums,
        )


def _weigh(batch: Batch, root: int, rate: float) -> tuple[int, tuple[Piece, ...]]:
    """Return the tokens of all prompts, and those kept as pieces."""
    spare_rate = BYTES_PER_ID if batch.is_exact else rate
    num_tokens = round(batch.spare_bytes / spare_rate)
    pieces = []
    for content in batch.kept:
        if isinstance(content, bytes):
            size = round(len(content) / rate) or 1
            pieces.append(Piece(size, root, None, content))
        else:
            size = len(content)
            pieces.append(Piece(size, root, content))
        num_tokens += size
    return num_tokens, tuple(pieces)


def _is_plain(content_encoding: bytes) -> bool:
    return content_encoding.strip().lower() in (b"", b"identity")


def _is_form(content_type: bytes) -> bool:
    return content_type[:10].lower() == b"multipart/"


def _describe(
    shape: Shape,
    fields: Body,
    grade: Grade = "none",
    pieces: tuple[Piece, ...] = (),
    num_tokens: int = 0,
    has_media: bool = False,
    text_bytes: int = 0,
    rate: float = PRIOR_BYTES_PER_TOKEN,
    sums: Sums | None = None,
) -> Prompt:
    """Put what was found of the prompt beside the fields around it."""
    model, stream = fields.model, fields.stream
    # As lax as the engines: 1 and 1.0 ask for events, too.
    is_stream = stream is not None and bool(stream == 1)
    wants_usage, can_inject = True, False
    if is_stream and shape.has_stream_options:
        can_inject = fields.stream_options is msgspec.UNSET
        wants_usage = not can_inject and fields.asks_usage()
    return Prompt(
        shape.kind,
        model if type(model) is str else None,
        grade,
        pieces,
        num_tokens,
        is_stream,
        wants_usage,
        can_inject,
        _session(fields),
        _pin(fields),
        _limit(fields),
        has_media,
        text_bytes,
        rate,
        sums,
    )


def _session(fields: Body) -> str | None:
    # Most bodies have few of these fields, nor of those below; where one is there,
    # the body's own method sorts them out.
    if (
        fields.user is not None
        or fields.session_id is not None
        or fields.prompt_cache_key is not None
        or fields.metadata is not None
        or fields.conversation is not None
        or fields.session_params is not None
    ):
        return fields.session_key()
    return None


def _pin(fields: Body) -> str | None:
    if fields.previous_response_id is not None or fields.rid is not None:
        return fields.pin_key()
    return None


def _limit(fields: Body) -> int | None:
    if (
        fields.max_tokens is not None
        or fields.max_completion_tokens is not None
        or fields.max_output_tokens is not None
        or fields.sampling_params is not None
    ):
        return fields.answer_limit()
    return None


def _read_leniently(shape: Shape, body: bytes) -> Prompt:
    try:
        fields = decode_fields(body)
    except UNREADABLE:
        fields = read_any_json(body)
    prompt = _describe(shape, fields)
    prompt.can_inject_usage = False
    return prompt


def _read_form(shape: Shape, content_type: bytes, body: bytes) -> Prompt:
    fields = find_fields(content_type, body)
    stream = fields.get("stream", "").lower() in ("true", "1")
    return Prompt(shape.kind, fields.get("model"), stream=stream)
