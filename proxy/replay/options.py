"""The flags of ``warmroute replay`` that say what a trace is played on."""

import argparse
import math
from collections.abc import Callable

from warmroute.policies.errors import ConfigError

_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}


def number(most: float, least: float | None = None) -> Callable[[str], float]:
    """Return a reader of numbers, above 0 without a least; k, M or G may end them."""

    def read(text: str) -> float:
        unit = _UNITS.get(text[-1:])
        try:
            value = float(text[:-1]) * unit if unit else float(text)
        except ValueError:
            value = math.nan
        is_enough = value > 0 if least is None else value >= least
        if not (is_enough and value <= most):
            allowed = "above 0" if least is None else f"from {least:g}"
            raise argparse.ArgumentTypeError(
                f"{text!r} (allowed: numbers {allowed}, at most {most:g})"
            )
        return value

    return read


def count(most: int, least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers; k, M or G may end them."""
    read_number = number(most, least)

    def read(text: str) -> int:
        value = read_number(text)
        if not value.is_integer():
            raise argparse.ArgumentTypeError(f"{text!r} (allowed: whole numbers)")
        return int(value)

    return read


def named(between: str, most: float) -> Callable[[str], tuple[str, float]]:
    """Return a reader of a name and a number above 0, such as ``engine-0=2``."""
    read_number = number(most)

    def read(text: str) -> tuple[str, float]:
        name, found, value = text.partition(between)
        if not found or not name:
            raise argparse.ArgumentTypeError(
                f"{text!r} (allowed: NAME{between}NUMBER, such as engine-0{between}2)"
            )
        return name, read_number(value)

    return read


def by_engine(
    flag: str, given: list[tuple[str, float]] | None, names: list[str]
) -> dict[int, float]:
    """Return the values of *flag* by the engine's number.

    Raises:
        ConfigError: There is no such engine.
    """
    values: dict[int, float] = {}
    for name, value in given or ():
        if name not in names:
            raise ConfigError(
                f"{flag}: unknown engine {name!r} (known: {names[0]} to {names[-1]})"
            )
        values[names.index(name)] = value
    return values


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the fleet."""
    add = parser.add_argument
    add(
        "--engine-model",
        choices=("fifo", "batching"),
        default="fifo",
        help="how engines are simulated: one prompt after the other, or batches (fifo)",
    )
    add(
        "--backends",
        type=count(4096, 1),
        default=8,
        metavar="N",
        help="how many engines (8)",
    )
    add(
        "--capacity",
        type=count(10**12, 0),
        metavar="TOKENS",
        help="memory of each, such as 420k or 3M (1M; batching: that of the constants)",
    )
    add(
        "--prefill-rate",
        type=number(1e9),
        metavar="R",
        help="prompt tokens that each computes a second, fifo only (8k)",
    )
    add(
        "--constants",
        metavar="FILE",
        help="measured constants of the engines, batching only",
    )
    add(
        "--constant",
        action="append",
        type=named("=", 1e12),
        metavar="NAME=VALUE",
        help="one constant, batching only; may come again",
    )


def add_playing(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say how the trace is played."""
    add = parser.add_argument
    add(
        "--queue",
        choices=("shortest_uncached", "arrival"),
        metavar="ORDER",
        help="hold requests for busy engines back in the router, and order them by "
        "shortest_uncached or arrival (nothing is held)",
    )
    add(
        "--speed",
        type=number(1e6),
        default=1.0,
        metavar="X",
        help="play it X times as fast as recorded (1)",
    )
    add(
        "--jitter",
        type=number(1e6, 0.0),
        default=0.0,
        metavar="S",
        help="delay each request by up to S recorded seconds, at random (0)",
    )
    add(
        "--seeds",
        type=count(1000, 1),
        default=1,
        metavar="K",
        help="play it K times with other random numbers, and take means (1)",
    )


def add_sessions(parser: argparse.ArgumentParser) -> None:
    """Declare the flags for traces of sessions."""
    add = parser.add_argument
    add(
        "--sessions",
        type=count(10**6, 1),
        default=32,
        metavar="N",
        help="of a trace of sessions: how many run at once (32)",
    )
    add(
        "--max-think",
        type=number(1e9, 0.0),
        default=300.0,
        metavar="S",
        help="of a trace of sessions: pauses are cut to S seconds (300)",
    )
    add(
        "--max-prompt",
        type=count(10**9, 1),
        default=131_072,
        metavar="TOKENS",
        help="of a trace of sessions: they end before a longer prompt (131072)",
    )


def add_troubles(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that make things worse."""
    add = parser.add_argument
    add(
        "--view",
        default="exact",
        metavar="GRADE",
        help="what the router knows of the caches: exact, mirror, mirror=F, delay=S, "
        "events-loss=P (exact)",
    )
    add(
        "--slow",
        action="append",
        type=named("=", 1000.0),
        metavar="NAME=F",
        help="an engine, such as engine-0, that takes F times as long; may come again",
    )
    add(
        "--misjudge",
        action="append",
        type=named("=", 1000.0),
        metavar="NAME=F",
        help="an engine that policies believe F times as fast as it is",
    )
    add(
        "--mislearn",
        action="append",
        type=named("=", 1000.0),
        metavar="NAME=F",
        help="an engine that was F times as fast until now, batching only",
    )
    add(
        "--die",
        action="append",
        type=named("@", 1e9),
        metavar="NAME@T",
        help="an engine that stops for good after T seconds, batching only",
    )


def add_objectives(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of the objectives, and of what is asked about them."""
    add = parser.add_argument
    add(
        "--ttft-slo",
        type=number(1e6),
        default=2.0,
        metavar="S",
        help="most seconds to the first token that are good (2)",
    )
    add(
        "--tpot-slo",
        type=number(1e6),
        default=0.05,
        metavar="S",
        help="most seconds a token that are good (0.05)",
    )
    add(
        "--what-if",
        type=number(1.0),
        metavar="SHARE",
        help="search the fewest engines that keep SHARE of the requests within both",
    )
