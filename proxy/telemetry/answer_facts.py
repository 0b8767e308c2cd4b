"""What a span tells of an engine's answer, read only when its trace is kept."""

from typing import Any

from warmroute.proxy.telemetry.told_json import UNREADABLE, Answer, decode_answer

_MAX_TEXT = 256
_MAX_REASONS = 128
_ENDS = ("completed", "incomplete", "failed")


class AnswerFacts:
    """Who answered, and why the answer ended."""

    __slots__ = ("finish_reasons", "model")

    def __init__(self) -> None:
        self.model: str | None = None
        self.finish_reasons: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<AnswerFacts {self.model} {self.finish_reasons}>"

    def take(self, data: bytes) -> None:
        """Add what one JSON document tells; one that is none tells nothing."""
        try:
            answer = decode_answer(data)
        except UNREADABLE:
            return
        inner = answer.response if isinstance(answer.response, dict) else {}
        model = answer.model or inner.get("model")
        if isinstance(model, str):
            self.model = model[:_MAX_TEXT]
        told = [_reason(reason) for reason in _reasons(answer, inner)]
        found = tuple(reason for reason in told if reason)
        self.finish_reasons = (self.finish_reasons + found)[:_MAX_REASONS]


def read_answer(ending: bytes) -> AnswerFacts:
    """Read a whole JSON answer, or the last events of a stream."""
    facts = AnswerFacts()
    if ending[:1] in (b"{", b"["):
        facts.take(ending)
        return facts
    for line in ending.split(b"\n"):
        if line.startswith(b"data:"):
            facts.take(line[5:].strip())
    return facts


def _reasons(answer: Answer, inner: dict[str, Any]) -> list[Any]:
    reasons = [choice.finish_reason for choice in answer.choices or ()]
    reasons.append(answer.stop_reason)
    if isinstance(answer.delta, dict):
        reasons.append(answer.delta.get("stop_reason"))
    if isinstance(answer.meta_info, dict):
        reasons.append(answer.meta_info.get("finish_reason"))
    ends = (answer.status, inner.get("status"))
    return reasons + [end for end in ends if end in _ENDS]


def _reason(value: Any) -> str | None:
    if isinstance(value, dict):  # SGLang's {"type": "stop", "matched": 2}
        value = value.get("type")
    return value[:_MAX_TEXT] if isinstance(value, str) else None
