"""Do the prompts that pass the running proxy break their own prefixes?"""

from collections.abc import Sequence

from warmroute.policies.errors import WarmrouteError
from warmroute.proxy.console.answers import State
from warmroute.proxy.doctor.finding import Finding, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient


class CacheKillers:
    """Ask the proxy: prompts are seen there, not here."""

    name = "cache killers"

    def compare(self, patients: Sequence[Patient]) -> Finding:
        """Tell the dearest one; the proxy's own commands tell all."""
        admin = patients[0].conditions.admin
        if admin is None:
            return skipped(
                "only a running proxy sees prompts; name its admin port: --admin URL"
            )
        try:
            state = admin.read("/api/state", State)
        except WarmrouteError as error:
            return warn(str(error), "start the proxy, or correct --admin")
        killers = state.cache_killers
        if not killers:
            return ok("none in the prompts that the proxy has looked at")
        remedy = f"see them all: warmroute stats --admin {admin.url}"
        return warn(f"{len(killers)} found: {killers[0].sentence}", remedy)
