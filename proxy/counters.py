"""Read the counters of engines whose answers report no cached tokens."""

import asyncio
import logging

from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.flow import Flow
from warmroute.proxy.ledger.unreported import Unreported
from warmroute.proxy.view import View

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class Counters:
    """Keep the truth loop closed where answers say nothing.

    Every ten seconds the cache counters of each such engine are read. What the view
    has promised in vain is charged to the token classes of later requests, and its
    promises are believed less. Engines whose answers report are read once.

    Args:
        fleet: The backends, and where to ask them.
        ledger: What was promised.
        view: Learns how much of it was true.
    """

    __slots__ = ("_fleet", "_ledger", "_seen", "_task", "_view")

    def __init__(self, fleet: Fleet, ledger: Ledger, view: View) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._view = view
        self._seen: dict[str, tuple[int, Unreported]] = {}
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Counters of {list(self._seen)}>"

    def start(self) -> None:
        """Begin to read; needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("cache_counters_crashed")
            await asyncio.sleep(INTERVAL_S)

    async def look(self) -> None:
        """Read the counters of every engine that needs it, one after the other."""
        backends = dict(self._fleet.backends)
        for name in [one for one in self._seen if one not in backends]:
            del self._seen[name]
        for name, backend in backends.items():
            if backend.state == "up":
                await self._read(name, backend)

    async def _read(self, name: str, backend: Backend) -> None:
        incarnation, unreported = self._seen.get(name, (0, Unreported()))
        if incarnation != backend.incarnation:
            unreported = Unreported()
        elif not any(one.unreported for one in self._flows(name)):
            return
        endpoint = self._fleet.endpoint(backend)
        if endpoint is None:
            return
        try:
            counters = await backend.adapter.cache_counters(endpoint)
        except Exception:  # an adapter is a plugin and may raise anything
            return  # the prober tells of it
        if counters is None or self._fleet.backends.get(name) is not backend:
            return
        self._seen[name] = (backend.incarnation, unreported)
        # Only now, for answers have come while the engine was asked.
        told = unreported.read(counters, self._flows(name))
        if told is not None:
            self._view.counted(name, told.promised, told.realised)

    def _flows(self, name: str) -> list[Flow]:
        return [one for one in self._ledger.flows() if one.backend == name]
