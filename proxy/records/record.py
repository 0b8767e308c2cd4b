"""One line of the access records."""

import os
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from warmroute.proxy.ledger.decision import Decision

_KEY = os.urandom(32)
_encode = msgspec.json.Encoder().encode


class AccessRecord(msgspec.Struct):
    """What is written of one request; the order of fields is that of the line.

    Attributes:
        time: Unix time of the decision, seconds.
        session: Digest of the session key, 16 hex digits, keyed anew by each process.
        grade: exact or estimated.
        block_size: Tokens of the prompt that one hash stands for.
        blocks: Chained block hashes, 16 hex digits each: equal ones mean that the
            prompts are equal up to there.
        chosen: The backend; None if the queue refused the request.
        input_length: Prompt tokens, as the engine counts them where it tells.
        output_length: Generated tokens, where the engine tells.
        predicted_tokens: What the view promised to be cached.
        cached_tokens: What the engine reported as cached.
        status: What the client got; 499 when it left.
        ttft_s: Seconds to the first token, where one came.
    """

    time: float
    request_id: str
    model: str
    session: str | None
    grade: str
    block_size: int
    blocks: list[str]
    input_length: int
    output_length: int | None
    policy: str
    chosen: str | None
    predicted_tokens: int
    cached_tokens: int | None
    status: int
    ttft_s: float | None
    duration_s: float


def write_line(
    decision: Decision, block_size: int, blocks: Sequence[int], session: str | None
) -> bytes:
    """Return the line of a settled *decision*, line feed included."""
    record = AccessRecord(
        round(decision.time, 6),
        decision.request_id,
        decision.model or "",
        None if session is None else _digest(session),
        decision.grade,
        block_size,
        [f"{block:016x}" for block in blocks],
        decision.prompt_tokens,
        decision.output_tokens,
        decision.policy,
        decision.chosen or None,
        decision.predicted_tokens,
        decision.cached_tokens,
        decision.status or 0,
        _seconds(decision.ttft_s),
        _seconds(decision.duration_s) or 0.0,
    )
    return _encode(record) + b"\n"


def _digest(session: str) -> str:
    """Hide what may be a user's name: a plain hash of one can be guessed."""
    data = session.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=8, key=_KEY).hexdigest()


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
