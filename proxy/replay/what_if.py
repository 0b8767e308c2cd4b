"""How many engines an objective needs, and of what memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from warmroute.proxy.replay.comparison import Comparison, Progress
from warmroute.proxy.replay.setting import Setting
from warmroute.proxy.replay.trace import Trace

CAPACITIES: Final = (0.5, 1.0, 2.0, 4.0)
"""Memories that are tried, as multiples of the one that was asked for."""

MOST_BACKENDS: Final = 512


@dataclass(frozen=True, slots=True)
class Need:
    """The fewest engines of one memory that keep to the objective.

    Attributes:
        capacity_tokens: Memory of each.
        backends: How many; None when `MOST_BACKENDS` are not enough.
        goodput: Share of requests within objectives that they reach.
    """

    capacity_tokens: int
    backends: int | None
    goodput: float


class WhatIf:
    """Search for the fewest engines under one policy.

    More engines are taken to be no worse. Every fleet that is tried is replayed with
    all seeds.

    Args:
        trace: What to replay.
        setting: The fleet that there is.
        policy: Under which policy.
        wanted: Share of requests that must be within objectives.
        on_progress: Told of every replay.
    """

    __slots__ = ("_on_progress", "_policy", "_setting", "_trace", "_wanted")

    def __init__(
        self,
        trace: Trace,
        setting: Setting,
        policy: str,
        wanted: float,
        on_progress: Progress | None = None,
    ) -> None:
        self._trace = trace
        self._setting = setting
        self._policy = policy
        self._wanted = wanted
        self._on_progress = on_progress

    def __repr__(self) -> str:
        return f"<WhatIf {self._policy} within objectives: {self._wanted:.1%}>"

    def search(self) -> "Answer":
        """Return what is needed, by memory."""
        needs = []
        for factor in CAPACITIES:
            capacity = int(factor * self._setting.capacity_tokens)
            reach = partial(self._goodput, capacity)
            backends, goodput = fewest(reach, self._wanted, MOST_BACKENDS)
            needs.append(Need(capacity, backends, goodput))
        return Answer(self._policy, self._wanted, self._setting, needs)

    def _goodput(self, capacity: int, backends: int) -> float:
        setting = replace(
            self._setting,
            backends=backends,
            capacity_tokens=capacity,
            slow={},
            misjudged={},
            mislearned={},
            dies_at={},
        )
        trace = self._trace
        if setting.batching is not None:
            trace = trace.within(capacity)
        comparison = Comparison(trace, setting, self._on_progress)
        (outcome,), _ = comparison.run([self._policy], with_oracles=False)
        refused = 1 - len(trace.requests) / len(self._trace.requests)
        return outcome.figures.goodput * (1 - refused)


class Answer:
    """What a search found.

    Args:
        policy: Under which policy.
        wanted: Share of requests that had to be within objectives.
        setting: The fleet that there is.
        needs: What is needed, by memory.
    """

    __slots__ = ("_needs", "_policy", "_setting", "_wanted")

    def __init__(
        self, policy: str, wanted: float, setting: Setting, needs: Sequence[Need]
    ) -> None:
        self._policy = policy
        self._wanted = wanted
        self._setting = setting
        self._needs = needs

    def __repr__(self) -> str:
        return f"<Answer {self.sentence}>"

    @property
    def sentence(self) -> str:
        """Say what is needed of the memory that there is."""
        have, own = self._setting.backends, self._setting.capacity_tokens
        need = next(one for one in self._needs if one.capacity_tokens == own)
        if need.backends is None:
            return f"{MOST_BACKENDS} engines are not enough"
        if need.backends == have:
            return f"you need {have}, which you have"
        return f"you need {need.backends}, not {have}"

    def as_object(self) -> dict[str, Any]:
        """Return everything for programs."""
        return {
            "policy": self._policy,
            "goodput_wanted": self._wanted,
            "sentence": self.sentence,
            "needs": [
                {
                    "capacity_tokens": need.capacity_tokens,
                    "backends": need.backends,
                    "goodput": need.goodput,
                }
                for need in self._needs
            ],
        }

    def lines(self) -> Iterator[str]:
        """Give the lines of a text."""
        yield (
            f"for {self._wanted:.1%} within objectives under {self._policy}: "
            f"{self.sentence}"
        )
        for need in self._needs:
            count = need.backends or f"more than {MOST_BACKENDS}"
            yield (
                f"  of {need.capacity_tokens} tokens each: {count} "
                f"({need.goodput:.1%} within)"
            )


def fewest(
    reach: Callable[[int], float], wanted: float, most: int
) -> tuple[int | None, float]:
    """Return the least count that reaches *wanted*, and what it reaches.

    Doubles, then halves the gap: O(log most) calls of *reach*, which must not fall.
    """
    low, high, reached = 0, 1, reach(1)
    while reached < wanted:
        if high == most:
            return None, reached
        low, high = high, min(most, 2 * high)
        reached = reach(high)
    while high - low > 1:
        middle = (low + high) // 2
        found = reach(middle)
        if found < wanted:
            low = middle
        else:
            high, reached = middle, found
    return high, reached
