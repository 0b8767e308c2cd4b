"""What the process asks of its operating system."""

import ctypes
import logging
import resource
import ssl

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import TLSConfig

logger = logging.getLogger(__name__)

# Names and numbers of glibc's mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MIB = 1 << 20


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


def raise_file_limit(connections: int) -> None:
    """Allow as many files as *connections* need: one each way, and some more."""
    needed = 2 * connections + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return
    wanted = needed if hard == unlimited else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < needed:
        logger.warning(
            "file_limit_low",
            extra={"allowed": wanted, "needed": needed, "for": "limits.connections"},
        )


def server_tls(config: TLSConfig) -> ssl.SSLContext:
    """Build the TLS context of the data port.

    Raises:
        ConfigError: The files do not hold a certificate and its key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.certificate, config.key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"tls: cannot use {config.certificate} with {config.key}: {error}"
        ) from error
    return context
