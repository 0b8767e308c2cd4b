"""The two sockets of a KV event publisher, and which of their addresses it binds."""

import logging
from collections.abc import Sequence
from socket import getaddrinfo

import zmq

from warmroute.adapters.embedded.server.kv_wire import SEQ_BYTES
from warmroute.policies.errors import ConfigError, WarmrouteError

_MALFORMED = (zmq.EINVAL, zmq.EPROTONOSUPPORT, zmq.ENOCOMPATPROTO)

logger = logging.getLogger(__name__)


class EndpointUnusable(WarmrouteError):
    """The address for KV events is well-formed, but cannot be had."""


def is_bound(endpoint: str) -> bool:
    """Return whether a publisher binds *endpoint*, as vLLM decides it.

    It binds wildcards, IPv6 addresses with ``::``, ipc and inproc, and connects to
    any other address, where the subscriber has to bind.
    """
    is_wildcard = "*" in endpoint or "::" in endpoint
    return is_wildcard or endpoint.startswith(("ipc://", "inproc://"))


class KVSockets:
    """Own a PUB socket and, for replay, a ROUTER.

    Made on one thread; each socket is then used by one at a time. The PUB socket binds
    what `is_bound` says, and connects to other addresses; the ROUTER always binds.

    Args:
        context: ZeroMQ context.
        hwm: Messages queued for one slow subscriber before further ones are dropped.
        buffer_steps: Messages in the longest replay.
        interface: What ``*`` stands for in an address.
    """

    __slots__ = (
        "_context",
        "_hwm",
        "_interface",
        "_publisher",
        "_replay_hwm",
        "replay",
    )

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        hwm: int,
        buffer_steps: int,
        interface: str = "*",
    ) -> None:
        self._context = context
        self._hwm = hwm
        self._interface = interface
        # A ROUTER drops what exceeds its mark, so two whole replays must fit below.
        self._replay_hwm = 2 * (buffer_steps + 1)
        self._publisher: zmq.Socket[bytes] | None = None
        self.replay: zmq.Socket[bytes] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._publisher is None else "open"
        return f"<KVSockets {state}, hwm {self._hwm}>"

    def open_publisher(self, endpoint: str) -> str:
        """Open the PUB socket, and return its address with the real port."""
        self._publisher = self._open(zmq.PUB, self._hwm)
        return self._attach(self._publisher, endpoint, is_bound(endpoint))

    def open_replay(self, endpoint: str) -> str:
        """Bind the ROUTER, and return its address with the real port."""
        self.replay = self._open(zmq.ROUTER, self._replay_hwm)
        return self._attach(self.replay, endpoint, True)

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send a message to the subscribers; drops it for those that lag."""
        assert self._publisher is not None
        self._publisher.send_multipart(frames)

    def receive_replay(self) -> tuple[bytes, int] | None:
        """Read a request: who asks, and from which sequence number on."""
        assert self.replay is not None
        frames = self.replay.recv_multipart()
        if len(frames) != 3 or frames[1] or len(frames[2]) != SEQ_BYTES:
            logger.warning("kv_events_replay_malformed frames=%d", len(frames))
            return None
        return frames[0], int.from_bytes(frames[2], "big")

    def send_replay(self, frames: Sequence[bytes]) -> None:
        """Send a message to a client; drops it if that one lags or left."""
        assert self.replay is not None
        try:
            self.replay.send_multipart(frames)
        except zmq.ZMQError as error:  # the peer is gone, or its address is odd
            logger.warning("kv_events_replay_failed reason=%s", error)

    def close(self, linger_ms: int) -> None:
        """Close both, giving what is queued *linger_ms* to leave.

        ZeroMQ lets go of the addresses a moment after this returned.
        """
        for socket in (self._publisher, self.replay):
            if socket is not None:
                socket.close(linger=linger_ms)
        self._publisher = self.replay = None

    def _open(self, kind: int, hwm: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set_hwm(hwm)
        return socket

    def _attach(self, socket: "zmq.Socket[bytes]", endpoint: str, binds: bool) -> str:
        """Bind or connect, and return the address with the port that was given."""
        if "[" in endpoint or ":" in self._interface:
            socket.setsockopt(zmq.IPV6, 1)
        try:
            if not binds:
                _check_host(endpoint)
                socket.connect(endpoint)
                return endpoint
            socket.bind(endpoint.replace("//*:", f"//{self._interface}:"))
        except zmq.ZMQError as error:
            raise _refused(endpoint, error) from error
        if not endpoint.endswith((":0", ":*")):
            return endpoint
        port = socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
        return f"{endpoint.rpartition(':')[0]}:{port}"


def _check_host(endpoint: str) -> None:
    """Refuse a host that has no address: ZeroMQ would try again in silence."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if not endpoint.startswith("tcp://") or not host or ";" in host:
        return
    try:
        getaddrinfo(host, None)
    except OSError as error:
        raise EndpointUnusable(
            f"KV events endpoint {endpoint!r}: host {host!r} is not found "
            f"({error.strerror}); name a host that subscribers bind on, or publish "
            f"from here on tcp://*:PORT"
        ) from error


def _refused(endpoint: str, error: zmq.ZMQError) -> WarmrouteError:
    if error.errno in _MALFORMED:
        return ConfigError(
            f"KV events endpoint {endpoint!r}: {error.strerror} (allowed: "
            f"tcp://*:PORT, tcp://HOST:PORT, tcp://[::1]:PORT, ipc://PATH)"
        )
    return EndpointUnusable(
        f"KV events endpoint {endpoint!r}: {error.strerror}; choose another address"
    )
