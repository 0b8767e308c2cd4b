"""Can the backends' KV events be told apart?"""

from collections import defaultdict
from collections.abc import Sequence

from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped
from warmroute.proxy.doctor.patient import Patient


class EventAddresses:
    """Look for backends that publish to one address under one topic."""

    name = "event addresses"

    def compare(self, patients: Sequence[Patient]) -> Finding:
        """Events that come from either would be believed of both."""
        users: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for patient in patients:
            for source in patient.sources:
                users[source.endpoint].append((source.topic, patient.name))
        if not users:
            return skipped("no KV events")
        for endpoint, those in users.items():
            topics = [topic for topic, _ in those]
            if len(those) > 1 and ("" in topics or len(set(topics)) < len(topics)):
                names = ", ".join(sorted({name for _, name in those}))
                return broken(
                    f"{names} publish at {endpoint} under the same topic, or without "
                    "one, so their blocks cannot be told apart",
                    "give each engine a topic or a port of its own",
                )
        return ok(f"{len(users)}, each backend told apart")
