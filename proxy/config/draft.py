"""A configuration on its way: plain values, where each came from, what is wrong.

Reading, overriding, interpolating and validating all work on one draft and report
into it, so that a person sees every problem of a file in one run.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

from warmroute.policies.errors import ConfigError

Path = tuple[str | int, ...]

MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Origin:
    """Say where a value came from: a file's line, a variable, or a flag."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Hold one thing that is wrong; its string is the line a person reads."""

    origin: Origin
    path: Path
    message: str

    def __str__(self) -> str:
        place = f"{dotted(self.path)}: " if self.path else ""
        return f"{self.origin}: {place}{self.message}"


@dataclass(slots=True)
class Draft:
    """Gather the values of a configuration with their origins and problems.

    *settled* holds the paths that need no more checking: values given verbatim by
    a variable or flag, which are not interpolated, and *broken* those that were
    reported already, so that one mistake makes one line.
    """

    root: Origin
    tree: object = None
    origins: dict[Path, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    settled: set[Path] = field(default_factory=set)
    broken: set[Path] = field(default_factory=set)

    def report(self, path: Path, message: str, origin: Origin | None = None) -> None:
        """Add a problem, placed at the nearest value whose origin is known."""
        place = origin or self.origin_of(path)
        self.problems.append(Problem(place, path, message))

    def origin_of(self, path: Path) -> Origin:
        """Return where the value at *path*, or what encloses it, came from."""
        for length in range(len(path), 0, -1):
            if origin := self.origins.get(path[:length]):
                return origin
        return self.root

    def is_broken(self, path: Path) -> bool:
        """Whether the value at *path*, or what encloses it, was reported."""
        return any(path[:length] in self.broken for length in range(len(path) + 1))

    def nest(self, name: str) -> None:
        """Make the whole of the values the value of one key."""
        self.tree = {name: self.tree}
        self.origins = {(name, *path): at for path, at in self.origins.items()}
        self.broken = {(name, *path) for path in self.broken}
        self.problems = [
            Problem(problem.origin, (name, *problem.path), problem.message)
            for problem in self.problems
        ]

    def value_at(self, path: Path) -> object:
        """Return the value at *path*, or None where there is none."""
        value = self.tree
        for step in path:
            try:
                value = value[step]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def error(self) -> ConfigError:
        """Return the problems as one error, a line each, in the order of the file."""
        ordered = sorted(self.problems, key=self._rank)
        return ConfigError("\n".join(dict.fromkeys(map(str, ordered))))

    def _rank(self, problem: Problem) -> tuple[bool, int]:
        return problem.origin.source != self.root.source, problem.origin.line or 0


def dotted(path: Path) -> str:
    """Write a path as people do: ``backends[1].engine``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def shown(value: object) -> str:
    """Show a value in a message: short, and without what a container holds."""
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list() | tuple() | set():
            return "a list"
        case None:
            return "nothing"
        case str():
            text = value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]}..."
            return f"'{text.encode('unicode_escape').decode()}'"
        case _:
            return str(value)[:MAX_SHOWN]


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that a name is unknown, which names are known, and the likely one."""
    names = sorted(known)
    message = f"unknown {kind} {shown(name)} (known: {', '.join(names) or 'none'})"
    return message + did_you_mean(name, names)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message that offers the nearest known name, or nothing.

    A *prefix* that all names share brings them no nearer.
    """
    by_rest = {each.removeprefix(prefix).lower(): each for each in known}
    matches = get_close_matches(name.removeprefix(prefix).lower(), by_rest, n=1)
    return f"; did you mean '{by_rest[matches[0]]}'?" if matches else ""
