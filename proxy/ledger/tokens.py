"""The classes of prompt tokens: what was served, and what was paid twice."""

from typing import NamedTuple

Classes = tuple[int, int, int, int, int]
"""What `TokenClasses` holds, in its order, in its plainest form."""


class TokenClasses(NamedTuple):
    """Prompt tokens by class; the classes sum to the prompt's tokens."""

    hit: int
    cold: int
    evicted: int
    elsewhere: int
    unpredicted: int

    @property
    def prompt(self) -> int:
        """Return the number of prompt tokens."""
        return sum(self)

    @property
    def paid_twice(self) -> int:
        """Return the tokens whose prefill is paid for a second time."""
        return self.evicted + self.elsewhere + self.unpredicted


def classify(
    prompt: int,
    cached: int,
    predicted: int,
    best: int,
    seen: int,
    most: int | None = None,
    slack: int = 0,
) -> Classes:
    """Put every prompt token into one class.

    Claims are taken in order of how well they are known: the engine's report
    (*cached*), the view's promise here (*predicted*), the best promise of any
    candidate (*best*), and what the fleet ever saw (*seen*). Each claim beyond
    the longest one before it is a class; what no claim reaches is cold.
    Claims above *prompt* or below zero are clamped.

    Args:
        most: What an engine can have cached of the prompt at most; no claim but
            the report goes beyond.
        slack: Claims that go less than this beyond are rounding, and cold.
    """
    if prompt <= 0:
        return 0, 0, 0, 0, 0
    if most is None or most > prompt:
        most = prompt
    reach = hit = 0 if cached < 0 else cached if cached < prompt else prompt
    reach += (unpredicted := _beyond(predicted, reach, most, slack))
    reach += (elsewhere := _beyond(best, reach, most, slack))
    reach += (evicted := _beyond(seen, reach, most, slack))
    return hit, prompt - reach, evicted, elsewhere, unpredicted


def _beyond(claim: int, reach: int, most: int, slack: int) -> int:
    beyond = (claim if claim < most else most) - reach
    return beyond if beyond > 0 and beyond >= slack else 0


class TokenTotals:
    """Sums of the token classes over requests."""

    __slots__ = (*TokenClasses._fields,)

    hit: int
    cold: int
    evicted: int
    elsewhere: int
    unpredicted: int

    def __init__(self) -> None:
        self.hit = self.cold = self.evicted = self.elsewhere = self.unpredicted = 0

    def add(self, classes: Classes) -> None:
        """Add the *classes* of one request, or of many."""
        hit, cold, evicted, elsewhere, unpredicted = classes
        self.hit += hit
        self.cold += cold
        if evicted:
            self.evicted += evicted
        if elsewhere:
            self.elsewhere += elsewhere
        if unpredicted:
            self.unpredicted += unpredicted

    def snapshot(self) -> TokenClasses:
        """Return the sums as they stand."""
        return TokenClasses(
            self.hit, self.cold, self.evicted, self.elsewhere, self.unpredicted
        )

    @property
    def paid_twice_ratio(self) -> float:
        """Return paid-twice tokens over prompt tokens, 0.0 before any."""
        sums = self.snapshot()
        return sums.paid_twice / sums.prompt if sums.prompt else 0.0

    def __repr__(self) -> str:
        sums = ", ".join(f"{k}={v}" for k, v in self.snapshot()._asdict().items())
        return f"<TokenTotals {sums}>"
