"""Do the engine's clock and ours agree?"""

from warmroute.proxy.doctor.finding import Finding, ok, skipped, warn
from warmroute.proxy.doctor.patient import Patient

_MAX_OFFSET_S = 2.0


class Clock:
    """Compare by an event's time, else by the date of an answer."""

    name = "clock"
    needs: tuple[str, ...] = ("reachable",)

    async def examine(self, patient: Patient) -> Finding:
        """The lag of events and the order of spans are told by both clocks."""
        heard, connection = patient.heard, patient.connection
        if heard is not None:
            offset_s, source = heard.timestamp - heard.received, "an event's time"
        elif connection is not None and connection.date is not None:
            offset_s, source = connection.date.offset_s, "the date of an answer"
        else:
            return skipped("the engine tells no time")
        if abs(offset_s) <= _MAX_OFFSET_S:
            return ok(f"within {_MAX_OFFSET_S:.0f} s of ours, by {source}")
        side = "ahead of" if offset_s > 0 else "behind"
        return warn(
            f"{abs(offset_s):.0f} s {side} ours, by {source}",
            "set both machines by NTP: the lag of events and the order of spans are "
            "wrong until then",
        )
