"""What the process asks of its operating system."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import importlib.util
import logging
import os
import resource
import ssl
from collections.abc import Callable, Iterator

from warmroute.policies.errors import ConfigError, WarmrouteError
from warmroute.proxy.config import Address, TLSConfig

logger = logging.getLogger(__name__)

# Names and numbers of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MIB = 1 << 20
_BACKLOG = 4096

# A request leaves no cycles, so a collection finds next to nothing: look seldom, and at
# few objects at a time but for the full one, which comes as seldom as it may: what
# announced blocks leave in the view is there to stay, and to walk it takes long.
_THRESHOLDS = (2_500, 10, 400)


def tune_allocator() -> None:
    """Keep large buffers in the heap instead of mapping each one anew.

    glibc serves a body of 256 KB by mmap, whose pages fault once a request; with
    these thresholds the pages are used again. Other C libraries have no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    mallopt(_M_TRIM_THRESHOLD, 64 * _MIB)
    mallopt(_M_TOP_PAD, _MIB)


def tune_collector() -> None:
    """Take what exists now out of garbage collection, and collect less often.

    Call it once the process has started: what is here by then stays, and a
    collection that walks it again finds nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def raise_file_limit(connections: int) -> None:
    """Allow as many files as *connections* need: one each way, and some more."""
    needed = 2 * connections + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    wanted = needed if hard == unlimited else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # the kernel's own limit is lower than the hard one
        wanted = soft
    if wanted < needed:
        logger.warning(
            "file_limit_low",
            extra={"allowed": wanted, "needed": needed, "for": "limits.connections"},
        )


@contextlib.contextmanager
def listening(key: str, address: Address) -> Iterator[None]:
    """Turn a failure to listen into an error that says where, and why.

    Raises:
        WarmrouteError: The address cannot be used.
    """
    try:
        yield
    except OSError as error:
        known = error.errno in errno.errorcode
        reason = os.strerror(error.errno or 0).lower() if known else error
        raise WarmrouteError(
            f"{key}: cannot listen on {address}: {reason}; choose another address, "
            "or stop what uses this one"
        ) from error


async def listen(
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
) -> tuple[asyncio.Server, tuple[str, int]]:
    """Listen; returns the server and its address, with the port where 0 was asked."""
    server = await asyncio.get_running_loop().create_server(
        factory, host, port, ssl=tls, backlog=_BACKLOG
    )
    address = server.sockets[0].getsockname()
    return server, (address[0], address[1])


def server_tls(config: TLSConfig) -> ssl.SSLContext:
    """Build the TLS context of the data port.

    Raises:
        ConfigError: The files do not hold a certificate and its key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, config)
    return context


def load_certificate(context: ssl.SSLContext, config: TLSConfig) -> None:
    """Give *context* the certificate in the files; new connections get it.

    Raises:
        ConfigError: The files do not hold a certificate and its key.
    """
    try:
        # An encrypted key must fail: without a password, OpenSSL asks the terminal.
        context.load_cert_chain(config.certificate, config.key, password="")
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls: cannot use {config.certificate} with {config.key}: {error}"
        ) from error


def find_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's event loop where installed; None is asyncio's."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop
