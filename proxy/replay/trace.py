"""A trace: which prompts came when, as lengths and block ids."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from warmroute.policies.errors import ConfigError
from warmroute.proxy.replay.prefix_tree import PrefixTree


class TraceError(ConfigError):
    """A trace cannot be read; the message names file, line and what is wrong."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        time_s: When it came, in seconds since the first one.
        prompt_tokens: Length of the prompt, at least 1.
        output_tokens: Length of the answer.
        blocks: Ids of the full blocks of the prompt, from its start on; equal ids
            mean equal blocks.
        segment: Where it ends in the trace's tree, once there is one.
        session: Key of its session; None without one.
    """

    time_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    segment: int = 0
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """A request of a session.

    Attributes:
        request: What is asked.
        after: The turn that it waits for; -1 is the beginning of the session.
        think_s: Seconds from that one's end to this one.
    """

    request: TraceRequest
    after: int
    think_s: float


class Session:
    """Turns in order, each of which waits for an earlier one.

    Attributes:
        turns: All of them.
        followers: Which turns wait for the beginning, for turn 0, for turn 1, ...
    """

    __slots__ = ("followers", "turns")

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = tuple(turns)
        followers: list[list[int]] = [[] for _ in range(len(self.turns) + 1)]
        for number, turn in enumerate(self.turns):
            followers[turn.after + 1].append(number)
        self.followers = tuple(map(tuple, followers))

    def __repr__(self) -> str:
        return f"<Session of {len(self.turns)} turns>"


@dataclass(frozen=True)
class Trace:
    """Requests in time order, at least one, and the size of their blocks in tokens.

    Attributes:
        name: Of the file.
        block_size: Tokens a block.
        requests: All of them; in a trace of sessions, one session after the other.
        sessions: Where turns wait for each other.
        num_left_out: Requests of the file that the engines would refuse.
        is_indexed: Whether the requests know their segments.
    """

    name: str
    block_size: int
    requests: tuple[TraceRequest, ...]
    sessions: tuple[Session, ...] = ()
    num_left_out: int = 0
    tree: PrefixTree | None = None

    @cached_property
    def prompt_tokens(self) -> int:
        """Sum the prompts of all requests. O(requests)."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        """Return the time from the first request to the last, as recorded.

        Sessions have no common time; of them it is 0.
        """
        if self.sessions:
            return 0.0
        return self.requests[-1].time_s - self.requests[0].time_s

    def indexed(self) -> "Trace":
        """Return the same with a tree of all prompts. O(blocks)."""
        if self.tree is not None:
            return self
        tree, numbers = PrefixTree(), dict[int, int]()
        requests = tuple(
            replace(
                one,
                segment=tree.insert(
                    array(
                        "Q", [numbers.setdefault(b, len(numbers)) for b in one.blocks]
                    )
                ),
            )
            for one in self.requests
        )
        return replace(self, requests=requests, tree=tree)

    def within(self, most_tokens: int) -> "Trace":
        """Return it without requests that an engine of so many tokens refuses."""
        if self.sessions:
            return self  # their reader has seen to it
        kept = tuple(
            one
            for one in self.requests
            if one.prompt_tokens + one.output_tokens <= most_tokens
        )
        if not kept:
            raise TraceError(
                f"{self.name}: every request is longer than the {most_tokens} tokens "
                f"that an engine holds (hold more with --capacity)"
            )
        num_left_out = self.num_left_out + len(self.requests) - len(kept)
        return replace(self, requests=kept, num_left_out=num_left_out)

    def arrivals(
        self, speed: float, jitter_s: float, rng: Random
    ) -> list[tuple[float, TraceRequest]]:
        """Return the requests in the order and at the times of a replay.

        Args:
            speed: How much faster than recorded.
            jitter_s: Each request comes later by U(0, jitter_s) recorded seconds;
                it spreads time stamps that were rounded down.
            rng: Draws the jitter.
        """
        if not jitter_s:
            return [(one.time_s / speed, one) for one in self.requests]
        spread = [
            ((one.time_s + jitter_s * rng.random()) / speed, one)
            for one in self.requests
        ]
        spread.sort(key=lambda arrival: arrival[0])
        return spread
