"""Requests that share their text, and what was lost among them, of the last hour."""

from dataclasses import dataclass
from math import exp
from typing import Final

from warmroute.policies.killers.killer import Killer
from warmroute.policies.killers.kinds import Kind

MEMORY_S: Final = 3600.0
"""What is older counts for little."""

MIN_REQUESTS: Final = 8
MIN_SHARE: Final = 0.05
"""Of the cluster's text must be lost, or it is not worth a word."""

_LEAST_LOSSES: Final = 0.5
_MIN_AGE_S: Final = 60.0
_DAY_S: Final = 86_400.0


@dataclass(slots=True)
class Loss:
    """What one kind of difference has cost.

    Args:
        num: Requests hit, those looked at.
        all_tokens: Lost, those of requests not looked at included.
        tokens: Lost in the requests looked at.
        size_bytes: The same in bytes of text.
        offset: Tokens in front of the earliest one.
        example: Its place, masked.
    """

    num: float = 0.0
    all_tokens: float = 0.0
    tokens: float = 0.0
    size_bytes: float = 0.0
    offset: int = 1 << 62
    example: str = ""


class Cluster:
    """Sums over the requests that have a chunk of text in common.

    All sums fade with a time constant of an hour, so that what was mended goes.
    """

    __slots__ = ("_age_at", "_began", "_losses", "_size_bytes", "name", "num")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.num = 0.0
        self._size_bytes = 0.0
        self._began = self._age_at = now
        self._losses: dict[Kind, Loss] = {}

    def __repr__(self) -> str:
        return f"<Cluster {self.name} requests={self.num:.1f} {list(self._losses)}>"

    def count(self, size_bytes: int, now: float, num: int = 1) -> None:
        """Count requests of this size that were looked at."""
        self._fade(now)
        self.num += num
        self._size_bytes += size_bytes * num

    def lose(
        self,
        kind: Kind,
        size_bytes: int,
        tokens: float,
        weight: int,
        offset: int,
        example: str,
    ) -> None:
        """Count what a request, counted before, has lost.

        Args:
            kind: What differed.
            size_bytes: Text behind it that is the same in most requests.
            tokens: The same, in tokens.
            weight: Requests that it stands for.
            offset: Tokens in front of it.
            example: Its place, masked.
        """
        loss = self._losses.setdefault(kind, Loss())
        loss.num += 1.0
        loss.all_tokens += tokens * weight
        loss.tokens += tokens
        loss.size_bytes += size_bytes
        if offset <= loss.offset:
            loss.offset, loss.example = offset, example

    def loses_anything(self, now: float) -> bool:
        """Tell whether a loss of about the last hour is remembered."""
        self._fade(now)
        return any(loss.num >= _LEAST_LOSSES for loss in self._losses.values())

    def killer(self, now: float) -> Killer | None:
        """Return the kind that costs most, if it is worth a word."""
        self._fade(now)
        kind = max(
            self._losses, key=lambda one: self._losses[one].all_tokens, default=None
        )
        if kind is None:
            return None
        loss = self._losses[kind]
        if loss.num < MIN_REQUESTS or loss.size_bytes < MIN_SHARE * self._size_bytes:
            return None
        age = max(now - self._began, _MIN_AGE_S)
        seconds = MEMORY_S * (1.0 - exp(-age / MEMORY_S))
        return Killer(
            self.name,
            loss.offset,
            round(self.num),
            round(loss.all_tokens / seconds * _DAY_S),
            round(loss.tokens / loss.num),
            kind,
            loss.example,
        )

    def _fade(self, now: float) -> None:
        if now <= self._age_at:
            return
        factor = exp((self._age_at - now) / MEMORY_S)
        self._age_at = now
        self.num *= factor
        self._size_bytes *= factor
        for loss in self._losses.values():
            loss.num *= factor
            loss.all_tokens *= factor
            loss.tokens *= factor
            loss.size_bytes *= factor
