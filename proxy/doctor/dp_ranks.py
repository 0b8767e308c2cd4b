"""Does every data-parallel rank tell what it holds?"""

from warmroute.proxy.doctor.finding import Finding, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient


class DPRanks:
    """Compare the ranks with the sources of events."""

    name = "dp ranks"
    needs: tuple[str, ...] = ("engine",)

    async def examine(self, patient: Patient) -> Finding:
        """A rank without events is a cache that nobody sees."""
        ranks = patient.facts.dp_ranks
        if ranks is None:
            return skipped("the engine does not tell how many it has")
        num_sources = len({source.rank for source in patient.sources})
        if patient.sources and num_sources != ranks:
            return warn(
                f"{ranks}, and events of {num_sources}",
                "set kv_events: auto, so that the engine names the address of every "
                "rank",
            )
        return ok(str(ranks))
