"""What all open pages are told, made once a second for all of them.

Nothing on the way of a request knows of it: it reads the counters and the newest
records, and writes only to tabs. Without a tab, a sample every 5 s is all it does.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from warmroute.policies.errors import ClientError
from warmroute.policies.kv.trunks import Survey
from warmroute.proxy.dashboard.changes import changes
from warmroute.proxy.dashboard.decisions import Newest
from warmroute.proxy.dashboard.history import History
from warmroute.proxy.dashboard.tab import Tab, frame
from warmroute.proxy.ledger import Ledger

TICK_S: Final = 1.0
MAX_TABS: Final = 100
MAX_NODES: Final = 240

# A survey may take this share of one core at most.
_SURVEY_SHARE: Final = 0.05

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where the pulse reads; the state of the admin server is one."""

    @property
    def ledger(self) -> Ledger:
        """The decisions and their sums."""
        ...

    def overview(self) -> Mapping[str, Any]:
        """Return the JSON of ``/api/state``."""
        ...

    def survey(self, max_nodes: int) -> Survey:
        """Begin a survey of the prefixes of all backends."""
        ...


class Pulse:
    """Tell every open tab what has changed, once a second.

    Args:
        source: What to tell.
        wall: Unix time.
        clock: Time that never goes back.
    """

    __slots__ = (
        *("_clock", "_history", "_is_closed", "_newest", "_source", "_state"),
        *("_survey", "_survey_at", "_tabs", "_wall"),
    )

    def __init__(
        self,
        source: Source,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._wall = wall
        self._clock = clock
        self._tabs: set[Tab] = set()
        self._state: Mapping[str, Any] | None = None
        self._newest = Newest()
        self._history = History()
        self._survey: bytes | None = None
        self._survey_at = float("-inf")
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Pulse [Tabs: {len(self._tabs)}, {self._history!r}]>"

    async def run(self) -> None:
        """Tick until cancelled; a failure costs one tick."""
        while True:
            try:
                self.tick()
                await self.look()
            except Exception:
                logger.exception("dashboard_tick_failed")
            await asyncio.sleep(TICK_S)

    def join(self, wants_view: bool) -> Tab:
        """Open a tab, which gets everything first.

        Raises:
            ClientError: 503, when there are 100 already or the server stops.
        """
        if len(self._tabs) >= MAX_TABS or self._is_closed:
            raise ClientError(
                503,
                "too_many_streams",
                f"{len(self._tabs)} dashboards are open "
                f"(allowed: {MAX_TABS}); close one",
                retry_after_s=5,
            )
        if self._state is None:
            self._state = self._source.overview()
            self._newest.look(self._source.ledger.newest())
        tab = Tab(wants_view)
        tab.put(frame("state", self._state))
        tab.put(frame("history", list(self._history.samples)))
        tab.put(frame("decisions", self._newest.all()))
        if wants_view and self._survey is not None:
            tab.put(self._survey)
        self._tabs.add(tab)
        return tab

    def leave(self, tab: Tab) -> None:
        """Forget a tab; with the last one, what only tabs need."""
        tab.close()
        self._tabs.discard(tab)
        if not self._is_watched():
            self._survey = None
        if not self._tabs:
            self._state = None
            self._newest = Newest()

    def close(self) -> None:
        """Close all tabs, and open none any more."""
        self._is_closed = True
        for tab in self._tabs:
            tab.close()

    def tick(self) -> None:
        """Sample, and tell the tabs what has changed."""
        sums = self._source.ledger.totals.snapshot()
        sample = self._history.take(self._wall(), sums)
        if not self._tabs:
            return
        assert self._state is not None
        state = self._source.overview()
        self._tell(frame("change", changes(self._state, state)))
        self._state = state
        decisions = self._newest.look(self._source.ledger.newest())
        if decisions:
            self._tell(frame("decisions", decisions))
        if sample is not None:
            self._tell(frame("sample", sample))

    async def look(self) -> None:
        """Survey the prefixes for the tabs that show them, when it is time.

        Lets the loop go on every few hundred steps. The next survey waits until
        this one has cost a twentieth of the time since.
        """
        if self._clock() < self._survey_at:
            return
        if not self._is_watched():
            return
        spent, steps = 0.0, self._source.survey(MAX_NODES)
        while True:
            begun = time.perf_counter()
            try:
                next(steps)
            except StopIteration as done:
                data = frame("view", done.value)
                spent += time.perf_counter() - begun
                break
            spent += time.perf_counter() - begun
            await asyncio.sleep(0)
        self._survey_at = self._clock() + spent / _SURVEY_SHARE
        if self._is_watched():  # they may have gone meanwhile
            self._survey = data
            self._tell(data, only_view=True)

    def _is_watched(self) -> bool:
        return any(tab.wants_view for tab in self._tabs)

    def _tell(self, data: bytes, only_view: bool = False) -> None:
        for tab in self._tabs:
            if tab.wants_view or not only_view:
                tab.put(data)
