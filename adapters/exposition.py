"""Read the few samples needed from an engine's Prometheus page.

An engine's page holds hundreds of kilobytes of histograms; finding the lines
wanted by a search over the bytes, and parsing only those, keeps it cheap enough
for the event loop.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from prometheus_client.parser import text_string_to_metric_families

from warmroute.policies.errors import ProtocolMismatch

MAX_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold one line: labels and value."""

    labels: Mapping[str, str]
    value: float


class Exposition:
    """Pick metrics by name from a Prometheus text page.

    Args:
        names: The sample names wanted, as on the wire (``_total`` included).
    """

    __slots__ = ("_needles",)

    def __init__(self, names: Iterable[str]) -> None:
        self._needles = [b"\n" + name.encode() for name in names]

    def read(self, page: bytes) -> "Samples":
        """Parse the lines wanted.

        Raises:
            ProtocolMismatch: A line wanted is malformed, or there are too many.
        """
        lines = list(islice(self._find(b"\n" + page), MAX_SAMPLES + 1))
        if len(lines) > MAX_SAMPLES:
            raise ProtocolMismatch(
                f"metrics page holds more than {MAX_SAMPLES} samples of a kind"
            )
        text = b"".join(line.rstrip(b"\r") + b"\n" for line in lines)
        samples: dict[str, list[Sample]] = {}
        try:
            for family in text_string_to_metric_families(text.decode()):
                for one in family.samples:
                    found = samples.setdefault(one.name, [])
                    found.append(Sample(one.labels, float(one.value)))
        except (ValueError, KeyError, IndexError) as error:
            raise ProtocolMismatch(f"metrics page is malformed: {error}") from error
        return Samples(samples)

    def _find(self, page: bytes) -> Iterator[bytes]:
        for needle in self._needles:
            at = page.find(needle)
            while at >= 0:
                end = page.find(b"\n", at + 1)
                line = page[at + 1 : end if end >= 0 else None]
                if line[len(needle) - 1 :].startswith((b"{", b" ", b"\t")):
                    yield line
                at = page.find(needle, end) if end >= 0 else -1


class Samples:
    """Hold the samples read; what is missing or not a number is None."""

    __slots__ = ("_found",)

    def __init__(self, found: Mapping[str, list[Sample]]) -> None:
        self._found = found

    def __repr__(self) -> str:
        return f"<Samples {', '.join(sorted(self._found)) or 'none'}>"

    def all(self, name: str) -> list[Sample]:
        """Return the samples of a name whose values are finite."""
        return [one for one in self._found.get(name, ()) if math.isfinite(one.value)]

    def first(self, *names: str) -> float | None:
        """Return the first value of the first name that has one."""
        return next((one.value for name in names for one in self.all(name)), None)

    def per_rank(self, name: str, label: str) -> list[float]:
        """Return one value for each value of a label: the greatest.

        Tensor-parallel ranks repeat what their data-parallel rank says.
        """
        ranks: dict[str, float] = {}
        for one in self.all(name):
            rank = one.labels.get(label, "")
            ranks[rank] = max(one.value, ranks.get(rank, one.value))
        return list(ranks.values())

    def total(self, name: str, label: str) -> int | None:
        """Sum a count over the ranks; None if nobody tells it."""
        return combined(sum, self.per_rank(name, label))

    def mean(self, name: str, label: str) -> float | None:
        """Average a share over the ranks; None if nobody tells it."""
        values = self.per_rank(name, label)
        return sum(values) / len(values) if values else None


def combined(fold: Callable[[list[float]], float], values: list[float]) -> int | None:
    """Fold counts into one; None if there is none."""
    return round(fold(values)) if values else None
