"""The data port's connections to all backends: kept ones, and new ones."""

import asyncio

from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.outbound import UpstreamConnection
from warmroute.proxy.http.outbox import Outbox
from warmroute.proxy.http.pool import ConnectionPool


class Upstreams:
    """Keep a pool of idle connections for each backend, and open new ones.

    Args:
        outbox: Holds small writes to them.
    """

    __slots__ = ("_idle_s", "_outbox", "_pools")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._idle_s = 0.0
        self._pools: dict[Backend, ConnectionPool] = {}

    def __repr__(self) -> str:
        return f"<Upstreams of {len(self._pools)} backends>"

    def configure(self, idle_s: float) -> None:
        """Keep idle connections so long from now on."""
        self._idle_s = idle_s
        for pool in self._pools.values():
            pool.idle_s = idle_s

    def pool(self, backend: Backend) -> ConnectionPool:
        """Return the kept connections of *backend*."""
        pool = self._pools.get(backend)
        if pool is None:
            pool = self._pools[backend] = ConnectionPool(self._idle_s)
        return pool

    async def connect(self, backend: Backend) -> UpstreamConnection:
        """Open a connection to *backend*.

        Raises:
            OSError: Nobody listens there, or TLS failed.
        """
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: UpstreamConnection(self._outbox),
            backend.host,
            backend.port,
            ssl=backend.ssl,
            server_hostname=backend.host if backend.ssl is not None else None,
        )
        return connection

    def forget(self, backend: Backend) -> None:
        """Close the kept connections of a backend that was removed."""
        if (pool := self._pools.pop(backend, None)) is not None:
            pool.close()

    def sweep(self, now: float) -> None:
        """Close what has been idle for too long."""
        for pool in self._pools.values():
            pool.sweep(now)

    def close(self) -> None:
        """Close all that are kept."""
        for pool in self._pools.values():
            pool.close()
