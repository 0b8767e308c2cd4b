"""Do the engine's KV events arrive here?"""

import errno
from typing import TYPE_CHECKING

from warmroute.adapters.base import EventAddress
from warmroute.adapters.kv_events.address import fault_of
from warmroute.policies.errors import AdapterError
from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient
from warmroute.proxy.doctor.prompt import fresh_prompt, send
from warmroute.proxy.fleet.event_sources import find_sources

if TYPE_CHECKING:
    from warmroute.proxy.doctor.ear import Ear, Heard, Listening

_CONNECT_S = 2.0
_ARRIVE_S = 2.0
_TRIES = 3


class KVEvents:
    """Subscribe, send a prompt that is new, and wait for its blocks."""

    name = "KV events"
    needs: tuple[str, ...] = ("engine",)

    async def examine(self, patient: Patient) -> Finding:
        """Note the sources, and the event that was heard."""
        configured = patient.config.kv_events
        if configured == "off":
            return skipped("kv_events: off; the view is a mirror of what was sent")
        patient.sources = await find_sources(
            *(configured, patient.adapter, patient.endpoint, patient.facts.dp_ranks)
        )
        if not patient.sources:
            return warn(
                "the engine publishes none, so the view is a mirror of what was sent",
                _remedy(patient),
            )
        faults = filter(None, (fault_of(one.endpoint) for one in patient.sources))
        if fault := next(faults, None):
            return broken(
                f"the engine says that it publishes where nothing can be: {fault}",
                "correct the endpoint that the engine was started with, or say in "
                "kv_events where it publishes",
            )
        if patient.ear is None:
            return broken(
                "the engine publishes, and the package pyzmq is missing here",
                "pip install 'warmroute[events]'",
            )
        return await _listen(patient, patient.ear)


async def _listen(patient: Patient, ear: "Ear") -> Finding:
    listening = ear.listen()
    try:
        for source in patient.sources:
            listening.add(source)
    except AdapterError as error:
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
            return broken(f"not heard: {error}", _reach(patient.sources))
        return warn(
            f"not heard: {error}",
            "look at view.source in /api/state, if it is the running warmroute that "
            "holds the address; stop whatever else does",
        )
    return await _hear(patient, listening)


async def _hear(patient: Patient, listening: "Listening") -> Finding:
    await listening.connected(_CONNECT_S)
    for _ in range(_TRIES):
        prompt = fresh_prompt(patient.facts.block_size, patient.max_model_len)
        if not prompt or not patient.is_good("generation"):
            return _without_a_prompt(patient, listening)
        listening.expect(prompt)
        await send(patient.endpoint, patient.model, prompt)
        patient.heard = await listening.announced(_ARRIVE_S)
        if patient.heard is not None:
            return ok(_told(patient, patient.heard))
        if not listening.is_connected:
            break
    return _silent(patient, listening)


def _without_a_prompt(patient: Patient, listening: "Listening") -> Finding:
    if listening.num_messages:
        return ok(f"{listening.num_messages} messages came; no prompt was sent")
    state = "connected" if listening.is_connected else "not connected yet"
    return skipped(f"{_places(patient.sources)}: {state}; no prompt was sent")


def _told(patient: Patient, heard: "Heard") -> str:
    delay_ms = 1000 * max(0.0, heard.received - heard.timestamp)
    late = f", {delay_ms:.0f} ms after it was made" if delay_ms < 60_000 else ""
    return (
        f"a prompt's blocks were announced at {_places(patient.sources)} by message "
        f"{heard.seq}{late}"
    )


def _silent(patient: Patient, listening: "Listening") -> Finding:
    places = _places(patient.sources)
    if listening.num_unreadable:
        return broken(
            f"{places}: {listening.num_unreadable} messages came that are no KV events",
            "correct the address in kv_events: something else is published there",
        )
    if listening.num_messages:
        return broken(
            f"{places}: events come, and none of the {_TRIES} prompts just sent",
            "correct the address or the topic in kv_events: they are another engine's",
        )
    if listening.is_connected:
        return broken(f"{places}: connected, and nothing comes", _remedy(patient))
    return broken(f"{places}: no connection", _reach(patient.sources))


def _reach(sources: list[EventAddress]) -> str:
    if any(one.binds for one in sources):
        return (
            "an engine that publishes to a concrete host connects there, so that must "
            "be an address of this machine; on another one start the engine with "
            "endpoint tcp://*:PORT"
        )
    return "open the port between here and the engine, or correct it in kv_events"


def _places(sources: list[EventAddress]) -> str:
    first = sources[0].endpoint
    more = len(sources) - 1
    return f"{first} and {more} more" if more else first


def _remedy(patient: Patient) -> str:
    return patient.adapter.remedy("kv_events", patient.facts.version)
