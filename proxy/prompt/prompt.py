"""What one request body asks for, as routing sees it."""

from array import array
from typing import Literal

from warmroute.proxy.prompt.density import PRIOR_BYTES_PER_TOKEN, Sums

Grade = Literal["exact", "estimated", "none"]

_PIECE_FIELDS = ("num_tokens", "root", "text", "tokens")
_PROMPT_FIELDS = (
    *("bytes_per_token", "can_inject_usage", "grade", "has_media", "kind"),
    *("max_tokens", "model", "num_tokens", "pieces", "pin", "session", "stream"),
    *("sums", "text_bytes", "wants_usage"),
)


class Piece:
    """One prompt of a request; a body may hold several.

    Args:
        num_tokens: Exact in grade exact, else estimated from the bytes.
        root: Seed of the block hash chain; covers model, LoRA and salt.
        tokens: Token ids (grade exact).
        text: Canonical bytes (grade estimated).
    """

    __slots__ = _PIECE_FIELDS

    def __init__(
        self,
        num_tokens: int,
        root: int,
        tokens: "array[int] | None" = None,
        text: bytes | None = None,
    ) -> None:
        self.num_tokens = num_tokens
        self.root = root
        self.tokens = tokens
        self.text = text

    def __repr__(self) -> str:
        return f"<Piece {self.num_tokens} tokens>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and _values(self) == _values(other)


class Prompt:
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
        bytes_per_token: Of the model, as it was at the reading.
        sums: What the engine's count of its tokens teaches; None before the model's
            first report, and for a prompt that does not teach.
    """

    __slots__ = _PROMPT_FIELDS

    def __init__(
        self,
        kind: str = "none",
        model: str | None = None,
        grade: Grade = "none",
        pieces: tuple[Piece, ...] = (),
        num_tokens: int = 0,
        stream: bool = False,
        wants_usage: bool = True,
        can_inject_usage: bool = False,
        session: str | None = None,
        pin: str | None = None,
        max_tokens: int | None = None,
        has_media: bool = False,
        text_bytes: int = 0,
        bytes_per_token: float = PRIOR_BYTES_PER_TOKEN,
        sums: Sums | None = None,
    ) -> None:
        self.kind = kind
        self.model = model
        self.grade = grade
        self.pieces = pieces
        self.num_tokens = num_tokens
        self.stream = stream
        self.wants_usage = wants_usage
        self.can_inject_usage = can_inject_usage
        self.session = session
        self.pin = pin
        self.max_tokens = max_tokens
        self.has_media = has_media
        self.text_bytes = text_bytes
        self.bytes_per_token = bytes_per_token
        self.sums = sums

    def __repr__(self) -> str:
        return f"<Prompt {self.kind} {self.grade} {self.num_tokens} tokens>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt) and _values(self) == _values(other)


def _values(one: Piece | Prompt) -> list[object]:
    names = _PROMPT_FIELDS if isinstance(one, Prompt) else _PIECE_FIELDS
    return [getattr(one, name) for name in names]
