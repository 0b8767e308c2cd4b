"""Does it generate? An engine can hang while its ``/health`` says 200."""

import time

from warmroute.policies.errors import BackendUnavailable
from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped
from warmroute.proxy.doctor.patient import Patient


class Generation:
    """Have it generate one token."""

    name = "generation"
    needs: tuple[str, ...] = ("models",)

    async def examine(self, patient: Patient) -> Finding:
        """Bound the wait: this is what finds the engine that hangs."""
        if not patient.conditions.is_probing:
            return skipped("--no-probe: no prompt is sent")
        began = time.monotonic()
        try:
            health = await patient.adapter.generate(patient.endpoint, patient.model)
        except BackendUnavailable as error:
            return broken(
                f"it says that it is healthy, and generates nothing: {error}"
                f"{_load(patient)}",
                "restart the engine: it hangs, if it is not merely overloaded; set "
                "health.generate: true, so that the proxy finds such engines",
            )
        took_ms = 1000 * (time.monotonic() - began)
        if not health.ready:
            return broken(health.detail, "read the engine's log, and restart it")
        return ok(f"one token within {took_ms:.0f} ms")


def _load(patient: Patient) -> str:
    running, waiting = patient.facts.running, patient.facts.waiting
    if running is None or waiting is None:
        return ""
    return f" ({running} requests running, {waiting} waiting)"
