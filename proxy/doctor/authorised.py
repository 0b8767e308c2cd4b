"""Does the engine take the backend's key?"""

from warmroute.adapters.registry import adapters
from warmroute.proxy.doctor.finding import Finding, broken, ok
from warmroute.proxy.doctor.patient import Patient

_PATH = "/v1/models"
_REFUSED = (401, 403)


class Authorised:
    """Ask for what engines guard with their key."""

    name = "authorised"
    needs: tuple[str, ...] = ("reachable",)

    async def examine(self, patient: Patient) -> Finding:
        """Compare nothing but the status; the key is not shown."""
        has_key = patient.config.api_key is not None
        status, _ = await patient.endpoint.get(_PATH)
        if status not in _REFUSED:
            return ok("the key is taken" if has_key else "no key is asked for")
        if has_key:
            return broken(
                f"{_PATH} answered HTTP {status}: the engine does not take the key",
                _remedy(patient),
            )
        return broken(
            f"{_PATH} answered HTTP {status}: the engine wants a key, and none is set",
            f"{_remedy(patient)}; without it the engine's models stay unknown",
        )


def _remedy(patient: Patient) -> str:
    configured = patient.config.engine
    adapter = patient.adapter if configured == "auto" else adapters.get(configured)()
    return adapter.remedy("api_key", None)
