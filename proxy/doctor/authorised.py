"""Does the engine take the backend's key?"""

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
                "set the backend's api_key to the engine's own (vLLM and SGLang: what "
                "--api-key says)",
            )
        return broken(
            f"{_PATH} answered HTTP {status}: the engine wants a key, and none is set",
            "set the backend's api_key: without it only clients that bring the key "
            "are served, and the engine's models stay unknown",
        )
