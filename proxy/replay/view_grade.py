"""How well a simulated router knows the caches of its engines."""

from dataclasses import dataclass
from typing import Final

from warmroute.policies.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ViewGrade:
    """What a router knows; the default is everything, at once.

    Attributes:
        capacity_error: Of a mirror, its capacity as a multiple of the true one; None
            for a view that follows the engines' events.
        delay_s: Seconds that events are late.
        loss: Share of the events that are lost on the way, and come `HEALED_S` late,
            when the gap was seen and replayed.
    """

    capacity_error: float | None = None
    delay_s: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        if self.capacity_error is not None:
            return f"mirror={self.capacity_error:g}"
        if self.delay_s:
            return f"delay={self.delay_s:g}"
        return f"events-loss={self.loss:g}" if self.loss else "exact"

    @property
    def is_exact(self) -> bool:
        """Tell whether the router knows what the engines have."""
        return self.capacity_error is None and not self.delay_s and not self.loss


EXACT: Final = ViewGrade()
"""Everything, at once."""

_GRADES: Final = "exact, mirror, mirror=F, delay=S, events-loss=P"


def read_view(text: str) -> ViewGrade:
    """Read what ``--view`` says.

    Raises:
        ConfigError: It is no grade.
    """
    name, _, value = text.partition("=")
    try:
        number = float(value) if value else None
    except ValueError:
        number = -1.0
    if name == "exact" and number is None:
        return EXACT
    if name == "mirror" and (number is None or 0 < number <= 1000):
        return ViewGrade(capacity_error=number or 1.0)
    if name == "delay" and number is not None and 0 <= number <= 1e6:
        return ViewGrade(delay_s=number)
    if name == "events-loss" and number is not None and 0 <= number <= 1:
        return ViewGrade(loss=number)
    raise ConfigError(f"--view: no grade {text!r} (known: {_GRADES})")
