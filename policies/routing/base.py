"""The contract of routing policies, and how one is built from its options."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import NoneType, UnionType
from typing import (
    Annotated,
    Protocol,
    Union,
    get_args,
    get_origin,
)

from warmroute.policies.errors import PolicyError
from warmroute.policies.registry import explain_unknown, policies
from warmroute.policies.routing.candidate import (
    Candidate,
    Choice,
    Cost,
    Costs,
    Query,
)

__all__ = [
    "Candidate",
    "Choice",
    "Cost",
    "Costs",
    "Limits",
    "Option",
    "Policy",
    "Query",
    "build",
    "options",
]


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


def build(
    name: str,
    values: Mapping[str, object] | None = None,
    rng: Random | None = None,
) -> Policy:
    """Build the policy called *name* with the options *values*.

    Args:
        name: As registered.
        values: Its options, as YAML gives them.
        rng: What it draws from, if its constructor takes one as ``rng``; for
            decisions that can be repeated.

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
    if rng is not None and "rng" in inspect.signature(plugin).parameters:
        given["rng"] = rng
    try:
        return plugin(**given)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"policy {name}: {error}") from error
