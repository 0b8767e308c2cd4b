"""The points at which prompts part, and how many of them go on with shared text."""

from collections import OrderedDict
from typing import Final

_MAX_WAYS: Final = 8
_MANY: Final = 256


class Sites:
    """Count, for each point, the requests that leave known text there.

    A template that has something of its own in the middle is joined again by nearly
    all of them. Documents that are retrieved for each question are not, however often
    the popular ones come.

    Args:
        max_sites: Points that are remembered at most.
    """

    __slots__ = ("_max_sites", "_sites")

    def __init__(self, max_sites: int) -> None:
        self._max_sites = max_sites
        self._sites: OrderedDict[int, dict[int | None, int]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Sites {len(self._sites)} of {self._max_sites}>"

    def share(self, site: int, resumes: int | None) -> float:
        """Count a request; return the part of all at *site* that are like it.

        Args:
            site: Chain of the last known chunk.
            resumes: The shared chunk with which it goes on; None for none.
        """
        sites = self._sites
        counts = sites.setdefault(site, {})
        sites.move_to_end(site)
        if len(sites) > self._max_sites:
            sites.popitem(last=False)
        if resumes not in counts and len(counts) >= _MAX_WAYS:
            resumes = None
        counts[resumes] = counts.get(resumes, 0) + 1
        total = sum(counts.values())
        if total > _MANY:
            for one in counts:
                counts[one] //= 2
        return counts[resumes] / max(1, sum(counts.values()))
