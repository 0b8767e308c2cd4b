"""Does the engine keep idle connections longer than the proxy's pool does?"""

from warmroute.proxy.doctor.finding import Finding, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient

MARGIN_S = 1.0
MAX_WAIT_S = 30.0

_AT_ONCE_S = 0.05


class KeepAlive:
    """Leave a connection idle, and see when it is closed; it takes its time."""

    name = "keep-alive"
    needs: tuple[str, ...] = ("reachable",)

    async def examine(self, patient: Patient) -> Finding:
        """A request sent as the engine closes has to be sent again."""
        connection = patient.connection
        if connection is None:
            return skipped("no answer to /health on a connection of its own")
        idle_s = patient.conditions.timeouts.pool_idle_s
        wait_s = min(idle_s + MARGIN_S, MAX_WAIT_S)
        after_s = await connection.closed_after(wait_s)
        connection.close()
        if after_s is None:
            return ok(
                f"open after {wait_s:g} s idle; timeouts.pool_idle_s is {idle_s:g} s"
            )
        if connection.says_close or after_s < _AT_ONCE_S:
            return warn(
                "it closes after each answer, so each request has to connect anew",
                "turn on keep-alive in the engine, or in what stands in front of it",
            )
        return warn(
            f"it closes after {after_s:.1f} s idle, and timeouts.pool_idle_s is "
            f"{idle_s:g} s: some requests meet a connection that is going",
            patient.adapter.remedy("keep_alive", patient.facts.version),
        )
