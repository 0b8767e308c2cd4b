"""The contracts of a check: of one backend, or of all of them together."""

from collections.abc import Sequence
from typing import Protocol

from warmroute.proxy.doctor.finding import Finding
from warmroute.proxy.doctor.patient import Patient


class Check(Protocol):
    """Examine one backend.

    Args:
        name: What the check is called in the report.
        needs: Names of the checks that must be good before this one makes sense.
    """

    name: str
    needs: tuple[str, ...]

    async def examine(self, patient: Patient) -> Finding:
        """Look, note on the patient what others may use, and say what was found.

        An `AdapterError` that it raises is a finding, too: broken.
        """
        ...


class FleetCheck(Protocol):
    """Compare the backends, each examined; asks them nothing."""

    name: str

    def compare(self, patients: Sequence[Patient]) -> Finding:
        """Say what was found."""
        ...
