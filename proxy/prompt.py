"""What a request asks for: its prompts, in the grade that can be known."""

import json
from array import array
from collections.abc import Iterable
from typing import Literal

import msgspec

from warmroute.policies.kv.blocks import Grade as KnownGrade
from warmroute.policies.kv.blocks import root_hash
from warmroute.proxy.batch import BYTES_PER_ID, Batch
from warmroute.proxy.bodies import Body
from warmroute.proxy.config import ModelConfig
from warmroute.proxy.density import Density
from warmroute.proxy.form import find_fields
from warmroute.proxy.shapes import Shape, decode_fields, find_response_id, find_shape

Grade = Literal["exact", "estimated", "none"]


class Piece(msgspec.Struct, gc=False):
    """One prompt of a request; a body may hold several.

    Args:
        num_tokens: Exact in grade exact, else estimated from the bytes.
        root: Seed of the block hash chain; covers model, LoRA and salt.
        tokens: Token ids (grade exact).
        text: Canonical bytes (grade estimated).
    """

    num_tokens: int
    root: int
    tokens: "array[int] | None" = None
    text: bytes | None = None


class Prompt(msgspec.Struct, gc=False):
    """What routing needs to know of one request body.

    Args:
        kind: Shape of the body, after its path, such as ``chat``; ``none`` for a
            path that carries no prompt.
        model: As the body names it.
        grade: ``none`` means no prompt, or none that could be read: by load.
        pieces: The prompts, empty ones left out, at most 64.
        num_tokens: Over all prompts, those beyond the 64 included.
        stream: The answer comes as events.
        wants_usage: The answer carries usage without our doing.
        can_inject_usage: ``stream_options`` may be spliced into the body.
        session: Key of affinity found in the body.
        pin: Response id or request id whose backend this request must reach.
        max_tokens: Bound on the answer, where the body gives one.
        has_media: Images, audio or video are among the prompt.
        text_bytes: Canonical bytes over all prompts (grade estimated).
    """

    kind: str = "none"
    model: str | None = None
    grade: Grade = "none"
    pieces: tuple[Piece, ...] = ()
    num_tokens: int = 0
    stream: bool = False
    wants_usage: bool = True
    can_inject_usage: bool = False
    session: str | None = None
    pin: str | None = None
    max_tokens: int | None = None
    has_media: bool = False
    text_bytes: int = 0


_UNREADABLE = (ValueError, TypeError, OverflowError, RecursionError)
_MAX_LENIENT_BYTES = 1 << 18
_MAX_ROOTS = 1024
_MAX_NAME_CHARS = 256


class PromptReader:
    """Read request bodies, and learn how many bytes make a token."""

    __slots__ = ("_density", "_roots", "_tokenizers")

    def __init__(self, models: Iterable[ModelConfig] = ()) -> None:
        self._density = Density()
        self._roots: dict[tuple[str, KnownGrade], int] = {}
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
        shape = find_shape(path)
        if not body or (content_encoding and not _is_plain(content_encoding)):
            return Prompt(shape.kind, pin=find_response_id(path))
        if content_type[:1] in b"mM" and _is_form(content_type):
            return _read_form(shape, content_type, body)
        batch = Batch()
        try:
            fields = shape.decode(body)
            has_prompt = shape.collect(fields, batch)
            prompt = _describe(shape, fields)
            if has_prompt:
                self._fill(prompt, fields, batch)
        except _UNREADABLE:
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
        if (
            prompt.grade == "estimated"
            and not prompt.has_media
            and not (prompt.pin is not None and prompt.kind == "responses")
        ):
            self._density.learn(prompt.model, prompt.text_bytes, prompt_tokens)

    def bytes_per_token(self, model: str | None) -> float:
        """Return the current estimate for a model, 4.0 before any report."""
        return self._density.bytes_per_token(model)

    def _fill(self, prompt: Prompt, fields: Body, batch: Batch) -> None:
        grade: KnownGrade = "exact" if batch.is_exact else "estimated"
        prompt.grade = grade
        prompt.has_media = batch.has_media
        rate = float(BYTES_PER_ID)
        if not batch.is_exact:
            rate = self._density.bytes_per_token(prompt.model)
            prompt.text_bytes = batch.kept_bytes + batch.spare_bytes
        root = self._find_root(prompt.model or "", grade, fields, batch.media)
        pieces = []
        num_tokens = round(batch.spare_bytes / rate) if batch.spare_bytes else 0
        for content in batch.kept:
            if isinstance(content, bytes):
                size = max(1, round(len(content) / rate))
                pieces.append(Piece(size, root, None, content))
            else:
                size = len(content)
                pieces.append(Piece(size, root, content))
            num_tokens += size
        prompt.pieces = tuple(pieces)
        prompt.num_tokens = num_tokens

    def _find_root(
        self, model: str, grade: KnownGrade, fields: Body, media: str
    ) -> int:
        if (
            media
            or fields.cache_salt is not None
            or fields.lora_path is not None
            or fields.extra_key is not None
            or len(model) > _MAX_NAME_CHARS
        ):
            return _separate_root(model, grade, fields, media)
        root = self._roots.get((model, grade))
        if root is None:
            root = root_hash(model, grade=grade)
            if len(self._roots) >= _MAX_ROOTS:
                del self._roots[next(iter(self._roots))]
            self._roots[model, grade] = root
        return root


def _separate_root(model: str, grade: KnownGrade, fields: Body, media: str) -> int:
    extra = [f"media={media}"] if media else []
    if (key := _name(fields.extra_key)) is not None:
        extra.append(f"extra_key={key}")
    lora, salt = _name(fields.lora_path), _name(fields.cache_salt)
    return root_hash(model, lora=lora, salt=salt, grade=grade, extra=extra)


def _is_plain(content_encoding: bytes) -> bool:
    return content_encoding.strip().lower() in (b"", b"identity")


def _is_form(content_type: bytes) -> bool:
    return content_type[:10].lower() == b"multipart/"


def _name(value: object) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _describe(shape: Shape, fields: Body) -> Prompt:
    stream = fields.is_stream()
    must_ask = stream and shape.has_stream_options
    return Prompt(
        shape.kind,
        fields.model_name(),
        stream=stream,
        wants_usage=not must_ask or fields.asks_usage(),
        can_inject_usage=must_ask and fields.stream_options is msgspec.UNSET,
        session=fields.session_key(),
        pin=fields.pin_key(),
        max_tokens=fields.answer_limit(),
    )


def _read_leniently(shape: Shape, body: bytes) -> Prompt:
    try:
        fields = decode_fields(body)
    except _UNREADABLE:
        fields = _read_any_json(body)
    prompt = _describe(shape, fields)
    prompt.can_inject_usage = False
    return prompt


def _read_any_json(body: bytes) -> Body:
    """Read what Python's own parser takes, as engines use it: NaN, surrogates."""
    if len(body) > _MAX_LENIENT_BYTES:
        return Body()
    try:
        found = json.loads(body)
    except _UNREADABLE:
        return Body()
    if not isinstance(found, dict):
        return Body()
    model = found.get("model")
    if isinstance(model, str):
        model = model.encode("utf-8", "replace").decode()
    return Body(model, found.get("stream"), found.get("stream_options"))


def _read_form(shape: Shape, content_type: bytes, body: bytes) -> Prompt:
    fields = find_fields(content_type, body)
    stream = fields.get("stream", "").lower() in ("true", "1")
    return Prompt(shape.kind, fields.get("model"), stream=stream)
