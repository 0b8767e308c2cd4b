"""How much of all prompts did the fleet serve from cache, before we came?"""

from collections.abc import Sequence

from warmroute.proxy.doctor.finding import Finding, ok, skipped
from warmroute.proxy.doctor.patient import Patient


class HitRatio:
    """Add up the counters that the engines had at the start."""

    name = "hit ratio"

    def compare(self, patients: Sequence[Patient]) -> Finding:
        """What was computed is not all waste: the first time must be."""
        known = [(one, one.counters) for one in patients if one.counters is not None]
        queried = sum(counters.queried for _, counters in known)
        if not queried:
            return skipped("no engine has counted a prompt yet, or tells it")
        served = sum(counters.hit for _, counters in known) / queried
        each = ", ".join(
            f"{one.name} {counters.hit / counters.queried:.0%}"
            for one, counters in known
            if counters.queried
        )
        return ok(
            f"since they started, the engines served {served:.0%} of {queried:,} "
            f"prompt tokens from cache and computed {1 - served:.0%} ({each})"
        )
