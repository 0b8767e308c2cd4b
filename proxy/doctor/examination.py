"""Run all checks: the backends at once, the checks of each one in order."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from warmroute.policies.errors import AdapterError
from warmroute.proxy.config import Config
from warmroute.proxy.console.admin_client import AdminClient
from warmroute.proxy.doctor.authorised import Authorised
from warmroute.proxy.doctor.block_size import BlockSize, SameBlockSize
from warmroute.proxy.doctor.cache_killers import CacheKillers
from warmroute.proxy.doctor.cached_tokens import CachedTokens
from warmroute.proxy.doctor.check import Check, FleetCheck
from warmroute.proxy.doctor.clock import Clock
from warmroute.proxy.doctor.dp_ranks import DPRanks
from warmroute.proxy.doctor.engine import Engine
from warmroute.proxy.doctor.event_addresses import EventAddresses
from warmroute.proxy.doctor.finding import Finding, blocked, broken
from warmroute.proxy.doctor.generation import Generation
from warmroute.proxy.doctor.hit_ratio import HitRatio
from warmroute.proxy.doctor.keep_alive import KeepAlive
from warmroute.proxy.doctor.kv_events import KVEvents
from warmroute.proxy.doctor.models import Models, SameModels
from warmroute.proxy.doctor.parity import Parity
from warmroute.proxy.doctor.patient import Conditions, Patient, admit
from warmroute.proxy.doctor.prefix_caching import PrefixCaching
from warmroute.proxy.doctor.reachable import Reachable
from warmroute.proxy.doctor.replay import Replay

if TYPE_CHECKING:
    from warmroute.proxy.doctor.ear import Ear

FIRST: Check = Reachable()
ASIDE: Check = KeepAlive()
IN_ORDER: tuple[Check, ...] = (
    Authorised(),
    Engine(),
    Models(),
    Generation(),
    PrefixCaching(),
    CachedTokens(),
    KVEvents(),
    Replay(),
    BlockSize(),
    Parity(),
    DPRanks(),
    Clock(),
)
CHECKS: tuple[Check, ...] = (FIRST, *IN_ORDER, ASIDE)
FLEET_CHECKS: tuple[FleetCheck, ...] = (
    SameModels(),
    SameBlockSize(),
    EventAddresses(),
    HitRatio(),
    CacheKillers(),
)

_ANSWERS_A_CHECK = 5
_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Examined:
    """Hold what all checks found.

    Args:
        patients: The backends with their findings, as configured in order.
        fleet: What comparing them found, by check.
    """

    patients: Sequence[Patient]
    fleet: dict[str, Finding]

    def all(self) -> list[Finding]:
        """List every finding."""
        each = [one for patient in self.patients for one in patient.findings.values()]
        return [*each, *self.fleet.values()]

    @property
    def is_broken(self) -> bool:
        """Whether anything is wrong that routing relies on."""
        return any(one.status == "broken" for one in self.all())


class Examination:
    """Examine the backends of a configuration.

    Args:
        config: What `warmroute serve` would run.
        timeout_s: Bound of one answer of an engine.
        is_probing: Whether small prompts may be sent.
        progress: Called with the checks done and their number.
        admin: Asks the running proxy, where one was named.
    """

    __slots__ = ("_config", "_done", "_progress", "_timeout_s", "_total", "conditions")

    def __init__(
        self,
        config: Config,
        timeout_s: float,
        is_probing: bool,
        progress: Callable[[int, int], None] = lambda done, total: None,
        admin: AdminClient | None = None,
    ) -> None:
        self._config = config
        self._timeout_s = timeout_s
        self._progress = progress
        self._done = 0
        self._total = len(config.backends) * len(CHECKS)
        self.conditions = Conditions(
            config.timeouts, config.models, timeout_s, is_probing, admin
        )

    def __repr__(self) -> str:
        return f"<Examination {self._done}/{self._total} checks done>"

    async def run(self) -> Examined:
        """Make all checks.

        Raises:
            ConfigError: A certificate file cannot be used.
        """
        ear = _open_ear()
        connector = aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar()
        )
        try:
            patients = [
                admit(one, self.conditions, session, ear)
                for one in self._config.backends
            ]
            await asyncio.gather(*map(self._examine, patients))
        finally:
            await session.close()
            if ear is not None:
                ear.close()
        fleet = {check.name: check.compare(patients) for check in FLEET_CHECKS}
        return Examined(patients, fleet)

    async def _examine(self, patient: Patient) -> None:
        try:
            await self._make(FIRST, patient)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._make(ASIDE, patient))
                for check in IN_ORDER:
                    await self._make(check, patient)
        finally:
            if patient.connection is not None:
                patient.connection.close()
        made = patient.findings
        patient.findings = {check.name: made[check.name] for check in CHECKS}

    async def _make(self, check: Check, patient: Patient) -> None:
        missing = [name for name in check.needs if not patient.is_good(name)]
        if missing:
            # The root of it is what is to be mended.
            finding = blocked(patient.findings[missing[0]].blocker or missing[0])
        else:
            finding = await self._fenced(check, patient)
        patient.findings[check.name] = finding
        self._done += 1
        self._progress(self._done, self._total)

    async def _fenced(self, check: Check, patient: Patient) -> Finding:
        limit_s = _ANSWERS_A_CHECK * self._timeout_s + _GRACE_S
        try:
            async with asyncio.timeout(limit_s):
                return await check.examine(patient)
        except TimeoutError:
            found = f"not done within {limit_s:g} s"
        except AdapterError as error:
            found = str(error)
        except Exception as error:  # an adapter is a plugin and may raise anything
            found = f"the check failed: {error!r}"
        return broken(found, "read the engine's log, or try again with more --timeout")


def _open_ear() -> "Ear | None":
    """Return what hears KV events; None where pyzmq is not installed."""
    try:
        from warmroute.proxy.doctor.ear import Ear
    except ImportError:
        return None
    return Ear()
