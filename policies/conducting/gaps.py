"""How long conversations stay away, and what that says of one that is away now.

Time away is cut into buckets whose ends grow by half. In each bucket there are the
seconds that conversations spent in it, and how many came back in it; their quotient is
the hazard: comings per second and conversation. Those that never come count as well,
for they spend their seconds like the others.
"""

from bisect import bisect_right
from collections import OrderedDict
from math import exp
from typing import Final

BOUNDS: Final = tuple(0.25 * 1.5**step for step in range(21))
"""Ends of the buckets in seconds; the last one is some 830 s."""

MAX_KINDS: Final = 256

_PRIOR_TALKS: Final = 8.0  # conversations that the prior weighs like
_MOST: Final = 400.0  # returns after which old ones are halved


def bucket(away_s: float) -> int:
    """Return the bucket of a time away; what is longer than all is in the last."""
    return min(bisect_right(BOUNDS, away_s), len(BOUNDS) - 1)


def start_of(at: int) -> float:
    """Return where a bucket begins, in seconds away."""
    return BOUNDS[at - 1] if at else 0.0


class Gaps:
    """Learn the hazard of coming back by the time away.

    Args:
        prior: What others do, which stands in until this has seen enough.
    """

    __slots__ = ("_away_s", "_came", "_num_came", "_prior")

    def __init__(self, prior: "Gaps | None" = None) -> None:
        self._prior = prior
        self._away_s = [0.0] * len(BOUNDS)
        self._came = [0.0] * len(BOUNDS)
        self._num_came = 0.0

    def __repr__(self) -> str:
        return f"<Gaps [{self._num_came:.0f} came back]>"

    def waited(self, at: int, seconds: float, weight: float = 1.0) -> None:
        """Count time away in bucket *at*."""
        self._away_s[at] += seconds * weight

    def came(self, at: int, weight: float = 1.0) -> None:
        """Count a return in bucket *at*."""
        self._came[at] += weight
        self._num_came += weight
        if self._num_came > _MOST * max(weight, 1.0):
            self._halve()

    def hazard(self, away_s: float) -> float:
        """Return the returns a second of one that has been away so long."""
        return self._hazard(bucket(away_s))

    def mean_hazard(self, start_s: float, end_s: float) -> float:
        """Return the returns a second over all buckets between two times away."""
        places = range(bucket(start_s), bucket(end_s) + 1)
        came = sum(self._came[at] for at in places)
        return came / (sum(self._away_s[at] for at in places) + 1e-9) if came else 0.0

    def index(self, away_s: float) -> float:
        """Return the best ratio of returns to seconds of waiting for one.

        Over all bucket ends at which waiting may be given up: the probability of a
        return by then, over the seconds waited in the mean. It is the Gittins index
        of keeping what is away (Gittins 1979; Aalto et al. 2009, section 3), in
        returns a second; the price of a second must be below. O(buckets).
        """
        alive, waited, best = 1.0, 0.0, 0.0
        start = away_s
        for at in range(bucket(away_s), len(BOUNDS)):
            seconds = BOUNDS[at] - start
            if seconds > 0.0:
                hazard = self._hazard(at)
                stay = exp(-hazard * seconds)
                waited += alive * (1.0 - stay) / hazard if hazard else alive * seconds
                alive *= stay
                best = max(best, (1.0 - alive) / waited)
                start = BOUNDS[at]
        return best

    def chance(self, away_s: float, within_s: float) -> float:
        """Return the probability of a return within some seconds from now."""
        total, start, end = 0.0, away_s, away_s + within_s
        for at in range(bucket(away_s), len(BOUNDS)):
            seconds = min(BOUNDS[at], end) - start
            if seconds <= 0.0:
                break
            total += self._hazard(at) * seconds
            start += seconds
        return 1.0 - exp(-total)

    def _hazard(self, at: int) -> float:
        came, away_s = self._came[at], self._away_s[at]
        if self._prior is not None:
            seconds = _PRIOR_TALKS * (BOUNDS[at] - start_of(at))
            came += seconds * self._prior._hazard(at)
            away_s += seconds
        return came / (away_s + 1e-9) if came else 0.0

    def _halve(self) -> None:
        self._num_came /= 2
        self._came = [one / 2 for one in self._came]
        self._away_s = [one / 2 for one in self._away_s]


class Kinds:
    """What is learned of each kind of conversation; the 256 used last.

    Args:
        every: What all of them do; a new kind starts from it.
    """

    __slots__ = ("_every", "_gaps")

    def __init__(self, every: Gaps) -> None:
        self._every = every
        self._gaps: OrderedDict[int, Gaps] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Kinds [{len(self)}]>"

    def __len__(self) -> int:
        return len(self._gaps)

    def of(self, kind: int) -> Gaps:
        """Return what is learned of a kind."""
        gaps = self._gaps.get(kind)
        if gaps is None:
            gaps = self._gaps[kind] = Gaps(self._every)
            if len(self._gaps) > MAX_KINDS:
                self._gaps.popitem(last=False)
        self._gaps.move_to_end(kind)
        return gaps
