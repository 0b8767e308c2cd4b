"""ZMQ sockets for KV events: one that is drained at once, and one that asks again."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from warmroute.policies.errors import AdapterError, BackendUnavailable

_HIGH_WATER = 200_000
_LIVE_HIGH_WATER = 20_000
_MAX_MESSAGE_BYTES = 64 << 20
_BURST = 32
_BURST_S = 0.0005
_REPLAY_PATIENCE_S = 1.2
_SEQ_BYTES = 8
_END = (-1).to_bytes(_SEQ_BYTES, "big", signed=True)

_TURNS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED

OnMessage = Callable[[bytes, int, bytes], None]
OnTurn = Callable[[], None]


class EventSocket:
    """One SUB socket. What comes is handed on as it comes, and never waits here.

    Engines stop serving when their publisher's queue is full, so that the socket is
    read until it is empty whenever there is anything, half a millisecond at a time,
    and work is left to others.

    Args:
        context: ZMQ's; owned by the caller.
        endpoint: Where to bind or to connect.
        binds: Which of both.
        on_message: Called with topic, number and payload.
        on_turn: Called when a publisher's connection is gone, or is there.
        is_full: Tells whether to leave what comes where it is, for now.
        on_read: Called when all that had come was handed on, or enough for now.
        clock: Monotonic seconds.

    Raises:
        AdapterError: The address cannot be bound or means nothing.
    """

    __slots__ = (
        "_clock",
        "_is_coming",
        "_is_full",
        "_loop",
        "_monitor",
        "_on_message",
        "_on_read",
        "_on_turn",
        "_socket",
        "endpoint",
    )

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        binds: bool,
        on_message: OnMessage,
        on_turn: OnTurn,
        is_full: Callable[[], bool] = lambda: False,
        on_read: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._on_message = on_message
        self._on_read = on_read
        self._on_turn = on_turn
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        self._is_coming = False
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, _LIVE_HIGH_WATER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._monitor = self._socket.get_monitor_socket(_TURNS)
        try:
            (self._socket.bind if binds else self._socket.connect)(endpoint)
        except zmq.ZMQError as error:
            self._close()
            verb = "bind" if binds else "connect to"
            raise AdapterError(
                f"cannot {verb} {endpoint} for KV events: {error.strerror} "
                "(allowed: tcp://host:port with a free port of this machine where the "
                "engine connects to it, or ipc://path)"
            ) from error
        self._loop.add_reader(self._socket.fileno(), self.read)
        self._loop.add_reader(self._monitor.fileno(), self._drain_monitor)
        # ZMQ tells of what is new only after it was asked once.
        self._loop.call_soon(self._drain_monitor)

    def __repr__(self) -> str:
        return f"<EventSocket {self.endpoint}>"

    @property
    def descriptor(self) -> int:
        """What the system knows it by; it is ready when ZMQ has something to tell."""
        return self._socket.fileno()

    def read(self) -> None:
        """Hand on what has come, unless this turn of the loop has had enough of it."""
        if not self._is_coming:
            self._drain()

    def subscribe(self, topic: str) -> None:
        """Receive what begins with *topic*; empty is everything."""
        self._socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._loop.call_soon(self.read)

    def close(self) -> None:
        """Stop receiving; safe to call again."""
        if self._socket.closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._close()

    def _close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _drain(self) -> None:
        """Read until empty; ZMQ tells of new messages only once it was."""
        if self._socket.closed:
            return
        until = self._clock() + _BURST_S
        while self._is_full() or self._take(until):
            if self._is_full() or self._clock() > until:
                if not self._is_coming:
                    self._is_coming = True
                    self._loop.call_soon(self._drain_on)
                break
        self._on_read()

    def _drain_on(self) -> None:
        self._is_coming = False
        self._drain()

    def _take(self, until: float) -> bool:
        """Hand on some messages, until a time; tell whether there may be more.

        The clock is read after each: 32 of them may be a megabyte and a half, which
        takes as long as the whole loop may.
        """
        receive = self._socket.recv_multipart
        for _ in range(_BURST):
            try:
                frames = receive(zmq.NOBLOCK)
            except zmq.ZMQError:
                return False
            if len(frames) == 3 and len(frames[1]) == _SEQ_BYTES:
                topic, number, payload = frames
                self._on_message(topic, int.from_bytes(number, "big"), payload)
            if self._clock() > until:
                break
        return True

    def _drain_monitor(self) -> None:
        is_turned = False
        while not self._monitor.closed:
            try:
                recv_monitor_message(self._monitor, zmq.NOBLOCK)
            except zmq.ZMQError:
                break
            is_turned = True
        if is_turned:
            self._on_turn()


async def ask_again(
    context: zmq.asyncio.Context, endpoint: str, first: int
) -> AsyncIterator[tuple[int, bytes]]:
    """Ask a publisher for its messages from number *first* on, and yield them.

    Raises:
        BackendUnavailable: It stays silent for 1.2 s before it has said all.
    """
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
    try:
        socket.connect(endpoint)
        await socket.send_multipart([b"", first.to_bytes(_SEQ_BYTES, "big")])
        while True:
            async with asyncio.timeout(_REPLAY_PATIENCE_S):
                frames = await socket.recv_multipart()
            if len(frames) < 2 or frames[-2] == _END:
                return
            if len(frames[-2]) == _SEQ_BYTES:
                yield int.from_bytes(frames[-2], "big"), frames[-1]
    except (zmq.ZMQError, TimeoutError) as error:
        raise BackendUnavailable(
            f"{endpoint} does not replay KV events: "
            f"{str(error) or f'no answer in {_REPLAY_PATIENCE_S} s'}"
        ) from error
    finally:
        socket.close(linger=0)
