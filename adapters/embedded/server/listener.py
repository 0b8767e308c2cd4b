"""The engine's address: taken before the model loads, used after it."""

import errno
import os
import socket

from aiohttp import web

from warmroute.policies.errors import ConfigError, WarmrouteError

DRAIN_S = 5.0
FAREWELL_S = 0.5


class Listener:
    """Hold an address, then serve an application on it.

    The address is bound at once, so that a taken one is told before the long load
    of a model; connections are refused until `start`.

    Args:
        host: Name or address of an interface.
        port: 0 takes a free one.

    Raises:
        ConfigError: The host is unknown.
        WarmrouteError: The address is taken, or may not be used.
    """

    __slots__ = ("_runner", "_socket", "host", "port")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._runner: web.AppRunner | None = None

    def __repr__(self) -> str:
        state = "listening" if self._runner else "bound"
        return f"<Listener {self.url} {state}>"

    @property
    def url(self) -> str:
        """Where clients find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self, app: web.Application) -> None:
        """Serve *app*; a client that leaves cancels its handler.

        Raises:
            WarmrouteError: Somebody took the address meanwhile.
        """
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=FAREWELL_S,
        )
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, self._socket).start()
        except OSError as error:
            raise _unusable(self.host, self.port, error) from error

    async def stop_accepting(self) -> None:
        """Take no new connections; those that are open go on."""
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()

    async def close(self) -> None:
        """Stop listening, give answers `FAREWELL_S` to leave, cancel the rest.

        May be called again, also when the first call was cancelled.
        """
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.release()

    def release(self) -> None:
        """Give the address back; for a listener that was never started."""
        self._socket.close()


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(
            f"--host {host!r}: no such address on this machine ({error}); "
            "use 127.0.0.1, or 0.0.0.0 for all interfaces"
        ) from error
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise _unusable(host, port, error) from error
    return bound


def _unusable(host: str, port: int, error: OSError) -> WarmrouteError:
    remedy = "choose another one with --port, or stop what uses this one"
    if error.errno == errno.EADDRNOTAVAIL:
        remedy = "choose an address of this machine with --host"
    reason = os.strerror(error.errno or 0).lower()
    return WarmrouteError(f"cannot listen on {host}:{port}: {reason}; {remedy}")
