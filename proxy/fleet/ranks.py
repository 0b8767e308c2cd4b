"""The data-parallel ranks behind the one address of a backend."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from warmroute.adapters.kv_events.address import EventAddress

MAX_RANKS = 256


class Counts(Protocol):
    """What is counted of the requests of one rank."""

    requests: int
    decodes: int
    prefill_tokens: int
    context_tokens: int


class Load:
    """The load of all ranks of a backend together.

    Attributes:
        requests: Requests in flight.
        decodes: Those of them that are past their first token.
        prefill_tokens: Uncached prompt tokens of those that are not.
        context_tokens: Prompt tokens of all of them.
    """

    __slots__ = ("context_tokens", "decodes", "prefill_tokens", "requests")

    def __init__(self, ranks: Iterable[Counts]) -> None:
        self.requests = self.decodes = self.prefill_tokens = self.context_tokens = 0
        for one in ranks:
            self.requests += one.requests
            self.decodes += one.decodes
            self.prefill_tokens += one.prefill_tokens
            self.context_tokens += one.context_tokens

    def __repr__(self) -> str:
        return f"<Load [{self.requests} requests, {self.prefill_tokens} to prefill]>"


def find_ranks(sources: Sequence[EventAddress], num_told: int | None) -> list[int]:
    """Return the numbers of a backend's ranks; empty unless there are several.

    Those that publish are known by number. An engine that counts more of them than
    publish has the others as well, unless the numbers show that it counts otherwise:
    then it is left to itself, for a rank that is never asked would stand idle.

    Args:
        sources: Where the ranks publish their events.
        num_told: How many ranks the engine says it has.
    """
    ranks = sorted({one.rank for one in sources})
    if num_told is not None and len(ranks) < num_told:
        is_subset = not ranks or ranks[-1] < num_told
        ranks = list(range(num_told)) if is_subset and num_told <= MAX_RANKS else []
    return ranks if 1 < len(ranks) <= MAX_RANKS else []


def seat_names(backend: str, ranks: Sequence[int]) -> list[str]:
    """Return what each rank is called as a candidate of its own.

    The first has the backend's name. The others have names with spaces, which no
    backend can have.
    """
    return [backend, *(f"{backend} rank {rank}" for rank in ranks[1:])]
