"""Does each answer say how much of its prompt was cached?"""

from warmroute.proxy.doctor.finding import Finding, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient


class CachedTokens:
    """Look into the usage of the prompts that were sent."""

    name = "cached-token reports"
    needs: tuple[str, ...] = ("engine",)

    async def examine(self, patient: Patient) -> Finding:
        """Without reports predictions cannot be verified, a request at a time."""
        is_told = patient.facts.reports_cached_tokens
        is_seen = any(one.cached_tokens is not None for one in patient.replies)
        if is_seen or (is_told and not patient.replies):
            return ok("in the usage of each answer" if is_seen else "on, as it says")
        if is_told is None and not patient.replies:
            return skipped("not told, and no prompt was sent")
        if is_told and not patient.is_good("prefix caching"):
            return ok("on, as it says; there was nothing cached to report")
        return warn(
            "no answer says how much of its prompt was cached, so predictions are "
            "not verified",
            patient.adapter.remedy("cached_tokens", patient.facts.version),
        )
