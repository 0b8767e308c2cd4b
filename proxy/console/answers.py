"""The answers of the admin port, as far as the terminal shows them.

Fields that an older or newer proxy leaves out have defaults; others are passed over.
"""

import msgspec


class Cost(msgspec.Struct):
    """The terms of a candidate's cost, seconds; None where nothing is priced."""

    wait_s: float | None = None
    miss_s: float | None = None
    decode_s: float | None = None
    total_s: float | None = None


class Tiers(msgspec.Struct):
    """Matched tokens by tier; they add up."""

    gpu: int = 0
    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        """Return the tokens of all tiers."""
        return self.gpu + self.host + self.disk


class Candidate(msgspec.Struct):
    """One backend as a decision met it."""

    backend: str
    state: str = ""
    view: str = ""
    matched_tokens: Tiers = msgspec.field(default_factory=Tiers)
    cost: Cost = msgspec.field(default_factory=Cost)


class Outcome(msgspec.Struct):
    """How a request ended."""

    status: int
    error: str | None = None
    cached_tokens: int | None = None
    predicted_tokens: int = 0
    difference: str | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    tokens: dict[str, int] | None = None


class Shadow(msgspec.Struct):
    """What a second policy would have done."""

    policy: str
    chosen: str


class Decision(msgspec.Struct):
    """One decision record."""

    request_id: str
    policy: str
    chosen: str | None
    reason: str
    candidates: list[Candidate]
    time: float = 0.0
    path: str = ""
    model: str | None = None
    grade: str = "none"
    prompt_tokens: int = 0
    attempts: int = 1
    outcome: Outcome | None = None
    shadow: Shadow | None = None


class Decisions(msgspec.Struct):
    """The list of them, newest first; each still as it was sent."""

    decisions: list[msgspec.Raw]


class View(msgspec.Struct):
    """The belief about one backend's cache."""

    source: str = "none"
    blocks: int = 0
    lag_s: float | None = None


class Load(msgspec.Struct):
    """What is reserved on one backend."""

    requests: int = 0
    prefill_tokens: int = 0
    decodes: int = 0


class Learned(msgspec.Struct):
    """What was learned of one backend's speed."""

    prefill_tokens_per_s: float | None = None
    itl_s: float | None = None


class Backend(msgspec.Struct):
    """One backend of the fleet."""

    name: str
    engine: str = ""
    state: str = ""
    breaker: str = "closed"
    view: View = msgspec.field(default_factory=View)
    load: Load = msgspec.field(default_factory=Load)
    learned: Learned = msgspec.field(default_factory=Learned)


class Index(msgspec.Struct):
    """The prefix index over all backends."""

    bytes: int = 0
    cap_bytes: int = 0
    blocks: int = 0


class CacheKiller(msgspec.Struct):
    """One thing that breaks prefixes."""

    sentence: str
    example: str = ""


class State(msgspec.Struct):
    """The whole fleet."""

    backends: list[Backend]
    tokens: dict[str, int]
    paid_twice_ratio: float
    index: Index = msgspec.field(default_factory=Index)
    version: str = ""
    policy: str = ""
    uptime_s: float = 0.0
    cache_killers: list[CacheKiller] = []
