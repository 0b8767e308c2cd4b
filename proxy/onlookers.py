"""Who looks on at the traffic: nobody here can delay or fail a request."""

import asyncio

from warmroute.proxy.config import Config
from warmroute.proxy.config.records import RecordsConfig
from warmroute.proxy.killer_watch import KillerWatch
from warmroute.proxy.port import DataPort
from warmroute.proxy.records.recorder import Recorder
from warmroute.proxy.router import Router

_FLUSH_S = 3.0


class Onlookers:
    """Start, reconfigure and stop what records the traffic.

    Args:
        router: Tells of settled requests.
        port: Shows the prompts that come.

    Attributes:
        killers: Looks for what breaks prefixes.
        recorder: Writes access records; None while the configuration asks for none.
    """

    __slots__ = ("_router", "killers", "recorder")

    def __init__(self, router: Router, port: DataPort) -> None:
        self._router = router
        self.killers = port.killers = KillerWatch()
        self.recorder: Recorder | None = None

    def __repr__(self) -> str:
        return f"<Onlookers {self.recorder!r}>"

    async def configure(self, config: Config) -> None:
        """Take over a configuration, at start and on reload."""
        await self._record_by(config.records)

    async def close(self, *, is_hurried: bool) -> None:
        """Flush what was gathered, within a bound."""
        self.killers.close()
        await self._stop_recording(0.1 if is_hurried else _FLUSH_S)

    async def _record_by(self, records: RecordsConfig | None) -> None:
        if records is None:
            await self._stop_recording(_FLUSH_S)
        elif self.recorder is None:
            self.recorder = self._router.recorder = Recorder(records)
        else:
            self.recorder.configure(records)

    async def _stop_recording(self, timeout_s: float) -> None:
        recorder, self.recorder = self.recorder, None
        self._router.recorder = None
        if recorder is not None:
            await asyncio.to_thread(recorder.close, timeout_s)
