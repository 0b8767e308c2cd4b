"""Probing of one backend: ask, report, wait, again."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from warmroute.adapters.base import (
    Adapter,
    BackendIsSelf,
    BackendRefused,
    Endpoint,
    EngineFacts,
    ModelCard,
)
from warmroute.adapters.kv_events.address import EventAddress
from warmroute.adapters.registry import detect
from warmroute.policies.errors import AdapterError
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.fleet.event_sources import find_sources

logger = logging.getLogger(__name__)

MODELS_EVERY = 3
FACTS_EVERY = 12
DOUBTED_INTERVAL_S = 1.0
MIN_GAP_S = 0.2
JITTER = 0.2


@dataclass(slots=True)
class Report:
    """Say what one probe found; None is "not asked" or "not answered".

    Args:
        ready: Whether the engine takes requests.
        refused: Whether its address refused the connection.
        is_self: Whether this process itself answered.
        detail: Why it is not ready.
        adapter: The adapter in force, detected anew where that was in doubt.
        detected: Whether every adapter had its say on what the engine is.
        models: The models served.
        facts: What the engine tells about itself.
        event_sources: Where it publishes its KV events.
        incarnation: That of the backend when it was asked.
    """

    adapter: Adapter
    ready: bool = False
    refused: bool = False
    is_self: bool = False
    detail: str = ""
    detected: bool = True
    models: list[ModelCard] | None = None
    facts: EngineFacts | None = None
    event_sources: list[EventAddress] | None = None
    incarnation: int = 1

    @property
    def boot_id(self) -> str | None:
        """Return which process of the engine answered, where it tells."""
        return None if self.facts is None else self.facts.boot_id


class Prober:
    """Probe one backend over and over; the owner runs and cancels it.

    A backend that is down or suspect is asked every second, any other at the
    configured interval, with jitter so that a fleet is not asked in step.

    Args:
        backend: Read only; what is found goes to *settle*.
        endpoint: Where to ask.
        health: Interval, and whether to generate.
        settle: Called with each report.
        clock: Monotonic seconds.
    """

    __slots__ = (
        "_backend",
        "_clock",
        "_complaints",
        "_endpoint",
        "_health",
        "_incarnation",
        "_round",
        "_settle",
        "_wake",
    )

    def __init__(
        self,
        backend: Backend,
        endpoint: Endpoint,
        health: HealthConfig,
        settle: Callable[[Backend, Report], None],
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._endpoint = endpoint
        self._health = health
        self._settle = settle
        self._clock = clock
        self._round = 0
        self._incarnation = -1
        self._wake = asyncio.Event()
        self._complaints: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Prober {self._backend.name} [round {self._round}]>"

    @property
    def endpoint(self) -> Endpoint:
        """Where the backend takes control calls."""
        return self._endpoint

    def configure(self, endpoint: Endpoint, health: HealthConfig) -> None:
        """Probe in another way from now on, and now."""
        self._endpoint = endpoint
        self._health = health
        self.wake()

    def wake(self) -> None:
        """Probe now rather than at the next interval."""
        self._wake.set()

    async def run(self) -> None:
        """Probe until cancelled; no failure ends it."""
        while True:
            self._wake.clear()
            try:
                self._settle(self._backend, await self.probe())
            except Exception:
                logger.exception("probe_crashed", extra={"backend": self._backend.name})
            await self._pause()

    async def probe(self) -> Report:
        """Ask once; raises nothing that a backend or an adapter can cause."""
        report = Report(self._backend.adapter)
        report.incarnation = self._backend.incarnation
        try:
            await self._ask_health(report)
        except BackendRefused as error:
            report.refused = True
            report.detail = str(error)
        except BackendIsSelf as error:
            report.is_self = True
            report.detail = str(error)
        except Exception as error:  # an adapter is a plugin and may raise anything
            report.detail = str(error) or repr(error)
        if report.ready:
            await self._learn(report)
            self._incarnation = report.incarnation
        self._round += 1
        return report

    async def _ask_health(self, report: Report) -> None:
        health = await report.adapter.probe(self._endpoint)
        if health.ready and self._must_generate():
            model = _base_model(self._backend)
            health = await report.adapter.generate(self._endpoint, model)
        report.ready = health.ready
        report.detail = health.detail

    def _must_generate(self) -> bool:
        vitals = self._backend.vitals
        return self._health.generate and not vitals.is_lively(self._clock())

    async def _learn(self, report: Report) -> None:
        doubted = self._backend.vitals.is_doubted()
        detecting = self._backend.config.engine == "auto" and (
            doubted or not self._backend.is_detected
        )
        if doubted or detecting or self._round % MODELS_EVERY == 0:
            await self._fenced("models", report, self._ask_models)
        if detecting:
            report.detected = False
            await self._fenced("engine", report, self._ask_engine)
        await self._fenced("facts", report, self._ask_facts)
        if self._must_ask_all(report):
            await self._fenced("kv events", report, self._ask_events)

    async def _ask_models(self, report: Report) -> None:
        report.models = await report.adapter.models(self._endpoint)

    async def _ask_engine(self, report: Report) -> None:
        report.adapter = await detect(self._endpoint, report.models or ())
        report.detected = True

    async def _ask_facts(self, report: Report) -> None:
        known = None if self._must_ask_all(report) else self._backend.facts
        report.facts = await report.adapter.facts(self._endpoint, known)

    async def _ask_events(self, report: Report) -> None:
        facts = report.facts or self._backend.facts
        report.event_sources = await find_sources(
            *(self._backend.config.kv_events, report.adapter, self._endpoint),
            facts.dp_ranks,
        )

    def _must_ask_all(self, report: Report) -> bool:
        """Tell whether what cannot change within an incarnation is asked anew."""
        backend = self._backend
        is_same = (
            report.adapter is backend.adapter
            and not backend.vitals.is_doubted()
            and self._incarnation == backend.incarnation
        )
        return not is_same or self._round % FACTS_EVERY == 0

    async def _fenced(
        self, what: str, report: Report, ask: Callable[[Report], Awaitable[None]]
    ) -> None:
        try:
            await ask(report)
        except AdapterError as error:
            self._complain(what, str(error))
        except Exception as error:  # an adapter is a plugin and may raise anything
            self._complain(what, repr(error))
        else:
            self._complaints.pop(what, None)

    def _complain(self, what: str, reason: str) -> None:
        if self._complaints.get(what) != reason:
            self._complaints[what] = reason
            logger.warning(
                "backend_unreadable",
                extra={"backend": self._backend.name, "what": what, "reason": reason},
            )

    async def _pause(self) -> None:
        interval_s = self._health.interval_s
        if self._backend.vitals.is_doubted():
            interval_s = min(interval_s, DOUBTED_INTERVAL_S)
        delay_s = interval_s * (1 - JITTER * random.random())
        gap_s = min(MIN_GAP_S, delay_s)
        await asyncio.sleep(gap_s)
        try:
            async with asyncio.timeout(delay_s - gap_s):
                await self._wake.wait()
        except TimeoutError:
            return


def _base_model(backend: Backend) -> str | None:
    bases = (id for id, card in backend.models.items() if card.parent is None)
    return next(bases, None)
