"""Can missed KV events be had again?"""

from typing import TYPE_CHECKING

from warmroute.adapters.base import EventAddress
from warmroute.policies.errors import BackendUnavailable
from warmroute.proxy.doctor.finding import Finding, broken, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient

if TYPE_CHECKING:
    from warmroute.proxy.doctor.ear import Ear


class Replay:
    """Ask each source for the message that was heard."""

    name = "replay"
    needs: tuple[str, ...] = ("KV events",)

    async def examine(self, patient: Patient) -> Finding:
        """Without a replay a gap costs all that is known of the backend."""
        sources, ear = patient.sources, patient.ear
        if not sources or ear is None:
            return skipped("no KV events")
        missing = [one for one in sources if one.replay is None]
        if missing:
            return warn(
                "there is none: after a gap or a late start the view is learned anew",
                patient.adapter.remedy("replay", patient.facts.version),
            )
        for source in sources:
            finding = await _ask(patient, ear, source)
            if finding is not None:
                return finding
        return ok(f"answered at {sources[0].replay}")


async def _ask(patient: Patient, ear: "Ear", source: EventAddress) -> Finding | None:
    """Return what is wrong with one source's replay; None if it is good."""
    assert source.replay is not None
    heard = patient.heard
    mine = heard if heard is not None and heard.source == source else None
    try:
        is_same = await ear.replays(source.replay, mine)
    except BackendUnavailable as error:
        return broken(
            str(error),
            "open the port between here and the engine, or correct the replay "
            "address in kv_events",
        )
    if is_same:
        return None
    return broken(
        f"{source.replay} does not send again what {source.endpoint} sent",
        "correct the replay address in kv_events: it is another engine's",
    )
