"""Is there an engine at the address, and does it say that it is ready?"""

import asyncio
import time

from warmroute.proxy.doctor.finding import Finding, broken, ok
from warmroute.proxy.doctor.idle_connection import IdleConnection
from warmroute.proxy.doctor.patient import Patient, headers
from warmroute.proxy.failures import connect_failure

_REMEDIES = {
    "refused": "start the engine, or correct the backend's url: nobody listens there",
    "connect_timeout": "correct the backend's url, or open the firewall between here "
    "and there",
    "unreachable": "correct the backend's url: host name, or the route to it",
    "bad_certificate": "set the backend's tls.ca to the PEM file that its certificate "
    "was signed with",
    "tls_failed": "correct the backend's url: https where the engine speaks TLS, else "
    "http",
}


class Reachable:
    """Connect as requests do, and ask for health."""

    name = "reachable"
    needs: tuple[str, ...] = ()

    async def examine(self, patient: Patient) -> Finding:
        """Note the connection, which stays open and idle."""
        target, timeout_s = patient.target, patient.conditions.timeouts.connect_s
        try:
            connection = await IdleConnection.open(target, patient.tls, timeout_s)
        except OSError as error:
            return _unreachable(patient, error)
        patient.connection = connection
        began = time.monotonic()
        health = await patient.adapter.probe(patient.endpoint)
        took_ms = 1000 * (time.monotonic() - began)
        if not health.ready:
            return broken(
                health.detail, "wait until the engine has started, or read its log"
            )
        await _ask(connection, patient)
        return ok(f"connected, and healthy within {took_ms:.0f} ms")


async def _ask(connection: IdleConnection, patient: Patient) -> None:
    """Put the connection to use, so that it idles; its answer is for other checks."""
    try:
        async with asyncio.timeout(patient.conditions.timeout_s):
            await connection.ask(patient.target, headers(patient.config))
    except (OSError, EOFError, asyncio.LimitOverrunError):
        connection.close()
        patient.connection = None


def _unreachable(patient: Patient, error: OSError) -> Finding:
    reason = connect_failure(error)
    target = patient.target
    found = f"cannot connect to {target.host} port {target.port}: {reason}"
    detail = error.strerror or str(error)
    if reason in ("unreachable", "bad_certificate", "tls_failed") and detail:
        found += f" ({detail})"
    return broken(found, _REMEDIES[reason])
