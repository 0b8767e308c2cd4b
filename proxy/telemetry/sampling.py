"""Which requests are traced: the standard OTEL samplers, without spans."""

import math
import random
from collections.abc import Mapping

from opentelemetry.trace import SpanContext

from warmroute.policies.errors import ConfigError

_LOW_64 = (1 << 64) - 1
_RATIOS = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
_PREFIX = "parentbased_"


class Sampler:
    """Decide by the parent when there is one, else by a ratio of trace ids.

    The ratio is taken of the low 64 bits of the trace id, as the SDK does, so
    that services with the same ratio agree about a trace.

    Args:
        ratio: Share of the traces that are kept.
        parent_based: Whether a client's decision counts.
        is_off: Whether nothing is to be kept, however unusual.
    """

    __slots__ = ("_bound", "_parent_based", "is_off", "ratio")

    def __init__(
        self, ratio: float, *, parent_based: bool = True, is_off: bool = False
    ) -> None:
        self.ratio = ratio
        self.is_off = is_off
        self._bound = round(ratio * (1 << 64))
        self._parent_based = parent_based

    def sample(self, parent: SpanContext | None) -> int | None:
        """Return the trace id to record under, or None to leave it out."""
        if parent is None:
            # Few are kept: only these get an id, and it is one that would be.
            if random.random() >= self.ratio:
                return None
            low = random.getrandbits(64) * self._bound >> 64
            return (random.getrandbits(64) | 1) << 64 | low
        if self._parent_based:
            return parent.trace_id if parent.trace_flags.sampled else None
        trace_id = parent.trace_id
        return trace_id if trace_id & _LOW_64 < self._bound else None

    def name(self, parent: SpanContext | None) -> str:
        """Return what kept a sampled request: ``parent`` or ``ratio``."""
        return "parent" if self._parent_based and parent is not None else "ratio"

    def __repr__(self) -> str:
        kind = "parent-based " if self._parent_based else ""
        return f"<Sampler {kind}{self.ratio}>"


def choose_sampler(sample: float, environ: Mapping[str, str]) -> Sampler:
    """Return the sampler that OTEL_TRACES_SAMPLER names, else *sample*'s.

    Raises:
        ConfigError: The variables name no sampler or no ratio.
    """
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if not name:
        return Sampler(sample)
    parent_based = name.startswith(_PREFIX)
    kind = name.removeprefix(_PREFIX)
    if kind not in _RATIOS:
        known = ", ".join([*_RATIOS, *(_PREFIX + kind for kind in _RATIOS)])
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER: unknown sampler {name!r} (known: {known})"
        )
    ratio = _RATIOS[kind]
    return Sampler(
        _read_ratio(environ) if ratio is None else ratio,
        parent_based=parent_based,
        is_off=name == "always_off",
    )


def _read_ratio(environ: Mapping[str, str]) -> float:
    text = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1.0"
    try:
        ratio = float(text)
    except ValueError:
        ratio = math.nan
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(
            f"OTEL_TRACES_SAMPLER_ARG: bad ratio {text!r} (allowed: 0.0 to 1.0)"
        )
    return ratio
