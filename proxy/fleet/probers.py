"""The control side of a fleet: one session, one probing task a backend."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import aiohttp

from warmroute.adapters.base import Endpoint
from warmroute.policies.errors import AdapterError
from warmroute.proxy.config.sections import HealthConfig
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.fleet.probe import Prober, Report

logger = logging.getLogger(__name__)

MAX_ABORTS = 256
REUSE_S = 0.5


class Probers:
    """Own every task and connection that watches the backends.

    Connections are reused within a probe, not between two: a probe shall find
    out whether somebody listens.

    Args:
        health: How to probe.
        settle: Called with each backend and what its probe found.
        clock: Monotonic seconds.
        instance_id: Of this process, to know it again behind a backend's address.
    """

    __slots__ = (
        "_aborts",
        "_clock",
        "_health",
        "_instance_id",
        "_probers",
        "_session",
        "_settle",
        "_tasks",
    )

    def __init__(
        self,
        health: HealthConfig,
        settle: Callable[[Backend, Report], None],
        clock: Callable[[], float],
        instance_id: str,
    ) -> None:
        self._instance_id = instance_id
        self._health = health
        self._settle = settle
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None
        self._probers: dict[str, Prober] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._aborts: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Probers {len(self._tasks)} running>"

    def open(self) -> None:
        """Open the session; needs a running loop."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=REUSE_S)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def close(self) -> None:
        """Cancel and await every task, then close all connections."""
        tasks = [*self._tasks.values(), *self._aborts]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._probers.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def watch(self, backend: Backend) -> None:
        """Probe a backend from now on; nothing before `open`."""
        if self._session is None:
            return
        endpoint = self._endpoint(self._session, backend)
        prober = Prober(backend, endpoint, self._health, self._settle, self._clock)
        self._probers[backend.name] = prober
        self._tasks[backend.name] = asyncio.create_task(
            prober.run(), name=f"probe {backend.name}"
        )

    def configure(self, health: HealthConfig, backends: Iterable[Backend]) -> None:
        """Probe *backends*, which are all, as *health* says from now on."""
        self._health = health
        for backend in backends:
            prober = self._probers.get(backend.name)
            if prober is not None and self._session is not None:
                prober.configure(self._endpoint(self._session, backend), health)

    def forget(self, name: str) -> Awaitable[object]:
        """Stop probing a backend, at once; what is returned awaits the last probe."""
        self._probers.pop(name, None)
        task = self._tasks.pop(name, None)
        if task is None:
            return asyncio.gather()
        task.cancel()
        return asyncio.gather(task, return_exceptions=True)

    def _endpoint(self, session: aiohttp.ClientSession, backend: Backend) -> Endpoint:
        headers = {"Accept-Encoding": "identity"}
        if backend.auth_header is not None:
            headers["Authorization"] = backend.auth_header[1].decode()
        timeout_s = self._health.timeout_s
        return Endpoint(
            session,
            backend.url,
            headers,
            timeout_s,
            backend.ssl,
            door_key=backend.door_key,
            instance_id=self._instance_id,
        )

    def endpoint(self, name: str) -> Endpoint | None:
        """Return where a backend takes control calls; None while it is not probed."""
        prober = self._probers.get(name)
        return None if prober is None else prober.endpoint

    def wake(self, name: str) -> None:
        """Probe a backend now rather than at its next interval."""
        prober = self._probers.get(name)
        if prober is not None:
            prober.wake()

    def abort(self, backend: Backend, request_id: str) -> None:
        """Send an abort in the background, bounded in number and time."""
        prober = self._probers.get(backend.name)
        if prober is not None and len(self._aborts) < MAX_ABORTS:
            task = asyncio.create_task(_abort(backend, prober.endpoint, request_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)


async def _abort(backend: Backend, endpoint: Endpoint, request_id: str) -> None:
    try:
        await backend.adapter.abort(endpoint, request_id)
    except AdapterError as error:
        extra = {"backend": backend.name, "reason": str(error)}
        logger.warning("abort_failed", extra=extra)
    except Exception:  # an adapter is a plugin and may raise anything
        logger.exception("abort_failed", extra={"backend": backend.name})
