"""The contract of routing policies, and how one is built from its options."""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Protocol,
    Union,
    get_args,
    get_origin,
    overload,
)

from warmroute.policies.errors import PolicyError
from warmroute.policies.registry import explain_unknown, policies
from warmroute.policies.routing.rates import (
    COLD_OUTPUT_TOKENS,
    COLD_RATE,
    SpeedClass,
)

if TYPE_CHECKING:
    from warmroute.policies.routing.reservation import Reservation

Cost = tuple[float, float, float, float]
"""Seconds of one candidate: wait, miss, decode, and their total."""


class Costs(Sequence[Cost]):
    """The costs of all candidates as one flat run, four numbers each.

    Cheaper to make and to keep than a list of tuples, which a policy may give as
    well. Reading is O(candidates), whatever is read: it happens when somebody asks.
    """

    __slots__ = ("flat",)

    def __init__(self, flat: Sequence[float]) -> None:
        self.flat = flat

    def __repr__(self) -> str:
        return f"<Costs {list(self)}>"

    def __len__(self) -> int:
        return len(self.flat) // 4

    def __iter__(self) -> Iterator[Cost]:
        numbers = iter(self.flat)
        return zip(numbers, numbers, numbers, numbers, strict=True)

    @overload
    def __getitem__(self, index: int) -> Cost: ...
    @overload
    def __getitem__(self, index: slice) -> list[Cost]: ...
    def __getitem__(self, index: int | slice) -> Cost | list[Cost]:
        return list(self)[index]


@dataclass(slots=True, eq=False)
class Candidate:
    """What a policy may know of one backend: numbers, no services.

    Owned by `FleetLoad`, which keeps the counts, and by the router, which sets
    *matched_tokens* before each choice. A policy only reads.
    """

    name: str
    speed: SpeedClass = field(default_factory=SpeedClass)
    """Learned figures of its class; shared by all backends of the class."""
    matched_tokens: int = 0
    """Prompt tokens of this request that are cached here, in whole blocks."""
    requests: int = 0
    """Our requests here, from dispatch to the end of the answer."""
    decodes: int = 0
    """Those of them that are past their first token."""
    prefill_tokens: int = 0
    """Uncached prompt tokens of those that are not."""
    context_tokens: int = 0
    """Prompt tokens of all of them."""
    queued_tokens: int = 0
    """Prompt tokens that other clients wait for, as the engine reports."""
    head_tokens: int = 0
    """Uncached tokens of the oldest request without a first token."""
    head_since: float = 0.0
    """When that one was dispatched."""
    last_first_token: float = 0.0
    """When the newest first token came from here."""
    rate: float = COLD_RATE
    """Prefill speed in tokens per second, learned and shrunk to its class."""
    tok: float = 0.0
    """EWMA sum of uncached tokens that it computed; for *rate*."""
    busy: float = 0.0
    """EWMA sum of the seconds that it took over them."""
    learned_at: float = 0.0
    """When those sums last changed."""
    kv_usage: float | None = None
    """Share of the KV pool in use, 0 to 1; unknown is not idle."""
    waiting: OrderedDict[Reservation, None] = field(
        default_factory=OrderedDict, repr=False
    )
    """Requests without a first token, oldest first."""

    @property
    def itl_s(self) -> float:
        """Seconds between two tokens of a stream here, under the load of now."""
        return self.speed.itl_s(max(1, self.requests), self.context_tokens)


@dataclass(slots=True)
class Query:
    """One request, as far as routing is concerned."""

    prompt_tokens: int
    now: float
    session: str | None = None
    rho: float = 0.0
    """Prefill utilisation of the pool: work sent in 60 s over what 60 s can do."""
    output_tokens: float = COLD_OUTPUT_TOKENS
    """Expected length of the answer."""


@dataclass(slots=True)
class Choice:
    """The answer of a policy."""

    index: int
    """Which candidate, by its place in the sequence."""
    reason: str
    """Why: ``prefix``, ``load``, ``session``, ``fallback`` or the policy's own word."""
    costs: Sequence[Cost] | None = None
    """The price of every candidate in the same order, where the policy has one."""


class Policy(Protocol):
    """Choose a backend for a request.

    A policy is a class with keyword-only options in its constructor, each with a
    default, found through the entry-point group ``warmroute.policies``. The
    constructor does no I/O.
    """

    name: str
    """The name under which it is configured."""

    def choose(self, query: Query, candidates: Sequence[Candidate]) -> Choice:
        """Choose one of *candidates*, which is never empty.

        Called for every request on the event loop: must not block, must not
        change what it is given, should take well under a microsecond a
        candidate, and must not raise (the router then falls back to the least
        loaded). It may keep state of its own; calls never overlap. Not every
        choice is acted on: explain calls ask, too.
        """
        ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The allowed range of a number, both ends included; goes in `Annotated`."""

    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a policy, as its constructor declares it."""

    name: str
    type: type
    default: object
    limits: Limits | None = None
    help: str = ""

    def check(self, value: object) -> str | None:
        """Say what is wrong with *value*, or None when nothing is."""
        wanted = (int, float) if self.type is float else self.type
        is_bool = isinstance(value, bool)
        if not isinstance(value, wanted) or is_bool is not (self.type is bool):
            return f"{value!r} is not of type {self.type.__name__}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{value!r} is not a finite number"
        limits = self.limits
        if limits and isinstance(value, int | float):
            if limits.minimum <= value <= limits.maximum:
                return None
            allowed = f"{limits.minimum:g} to {limits.maximum:g}"
            return f"{value!r} is out of range (allowed: {allowed})"
        return None


def options(plugin: type) -> list[Option]:
    """List the options that *plugin* takes: what YAML can say and may leave out.

    Those are the keyword arguments of its constructor whose type is bool, int,
    float, str, list or dict. ``Annotated[float, Limits(0, 1), "help"]`` adds a
    range and a line of help. Others, such as an injected `random.Random`, are
    for code only.
    """
    try:
        signature = inspect.signature(plugin, eval_str=True)
    except NameError as error:
        raise PolicyError(
            f"cannot read the options of {plugin.__qualname__}: {error}; annotations "
            "of constructor arguments must be importable at run time"
        ) from error
    read = [_read_option(one) for one in signature.parameters.values()]
    return [option for option in read if option is not None]


def _read_option(parameter: inspect.Parameter) -> Option | None:
    hint: object = parameter.annotation
    if hint is parameter.empty:
        hint = type(parameter.default)
    extras: tuple[object, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        extras = tuple(rest)
    if get_origin(hint) in (Union, UnionType):
        members = [one for one in get_args(hint) if one is not NoneType]
        hint = members[0] if len(members) == 1 else None
    plain = get_origin(hint) or hint
    if plain not in (bool, int, float, str, list, dict):
        return None
    return Option(
        parameter.name,
        plain,
        parameter.default,
        next((one for one in extras if isinstance(one, Limits)), None),
        next((one for one in extras if isinstance(one, str)), ""),
    )


def build(name: str, values: Mapping[str, object] | None = None) -> Policy:
    """Build the policy called *name* with the options *values*.

    Raises:
        PolicyError: No such policy, no such option, or a value it does not take.
    """
    plugin = policies.get(name)
    given = dict(values or {})
    known = {option.name: option for option in options(plugin)}
    for key, value in given.items():
        if key not in known:
            raise PolicyError(f"policy {name}: {explain_unknown('option', key, known)}")
        if value is None and known[key].default is None:
            continue
        fault = known[key].check(value)
        if fault:
            raise PolicyError(f"policy {name}: {key}: {fault}")
    try:
        return plugin(**given)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"policy {name}: {error}") from error
