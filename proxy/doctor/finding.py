"""What one check found."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "broken", "skipped"]

MAX_CHARS = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """Say how it stands, what was found, and what to do about it.

    Engines have a part in the texts, so both are cut, and hold nothing that a
    terminal would obey.

    Args:
        status: ``broken`` is what routing relies on; ``warn`` makes it worse.
        found: What was seen.
        remedy: What to do; empty where there is nothing to do.
        blocker: Name of the check that is to be good first, where that is why.
    """

    status: Status
    found: str
    remedy: str = ""
    blocker: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", _clean(self.found))
        object.__setattr__(self, "remedy", _clean(self.remedy))

    @property
    def is_good(self) -> bool:
        """Whether checks that need this one can be made."""
        return self.status in ("ok", "warn")


def ok(found: str) -> Finding:
    """Find that all is well."""
    return Finding("ok", found)


def warn(found: str, remedy: str) -> Finding:
    """Find that routing works, but not as well as it could."""
    return Finding("warn", found, remedy)


def broken(found: str, remedy: str) -> Finding:
    """Find that something is wrong that routing relies on."""
    return Finding("broken", found, remedy)


def skipped(found: str) -> Finding:
    """Find nothing, and say why."""
    return Finding("skipped", found)


def blocked(blocker: str) -> Finding:
    """Find nothing, as another check is not good."""
    return Finding("skipped", f"needs {blocker!r}", blocker=blocker)


def _clean(text: str) -> str:
    printable = "".join(one if one.isprintable() else "?" for one in text)
    return printable if len(printable) <= MAX_CHARS else printable[:MAX_CHARS] + "..."
