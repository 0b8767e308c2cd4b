"""A publisher of KV events over real ZMQ sockets that can be told to misbehave."""

import asyncio
import contextlib

import msgspec
import zmq
import zmq.asyncio
from conformance.rig import PATIENCE_S

from warmroute.adapters.kv_events.address import EventAddress


class Publisher:
    """Numbers and sends batches, as an engine does, and replays them.

    Args:
        context: ZMQ's.
        endpoint: Where to publish: ``tcp://127.0.0.1:0`` binds a free port.
        connects: Connect to the endpoint instead, as vLLM does for a concrete host.
        topic: Put on every message.
        buffer: Messages kept for replay.
        replay: Where to answer replays.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoint: str = "tcp://127.0.0.1:0",
        *,
        connects: bool = False,
        topic: str = "kv",
        buffer: int = 10_000,
        replay: str = "tcp://127.0.0.1:0",
    ) -> None:
        self.context = context
        self._topic = topic.encode()
        self._buffer = buffer
        self._sent: list[bytes] = []
        self._socket = context.socket(zmq.XPUB)
        self._socket.linger = self._socket.sndhwm = 0
        if connects:
            self._socket.connect(endpoint)
        else:
            self._bind(self._socket, endpoint)
            endpoint = self._socket.last_endpoint.decode()
        self._router = context.socket(zmq.ROUTER)
        self._router.linger = self._router.sndhwm = 0
        self._bind(self._router, replay)
        replay = self._router.last_endpoint.decode()
        self.address = EventAddress(endpoint, replay, topic, binds=connects)
        self.num_asked = 0
        self._task = asyncio.create_task(self._answer())

    def _bind(self, socket: "zmq.Socket[bytes]", endpoint: str) -> None:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            socket.close()
            self._socket.close()
            raise

    @property
    def last_seq(self) -> int:
        """Number of the newest message; -1 before the first."""
        return len(self._sent) - 1

    async def publish(self, *events: object, is_lost: bool = False) -> None:
        """Send one batch; one that is lost can only be replayed."""
        payload = msgspec.msgpack.encode([1.0, list(events), 0])
        seq = len(self._sent)
        self._sent.append(payload)
        if not is_lost:
            await self._send(seq, payload)

    async def repeat(self, seq: int) -> None:
        """Send an old message once more."""
        await self._send(seq, self._sent[seq])

    async def subscribed(self) -> None:
        """Return once somebody hears."""
        async with asyncio.timeout(PATIENCE_S):
            await self._socket.recv()

    def begin_anew(self) -> None:
        """Lose everything and number from 0 on, over the same connections."""
        self._sent.clear()

    async def close(self) -> None:
        """Go, and lose everything."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._socket.close(linger=0)
        self._router.close(linger=0)

    async def _send(self, seq: int, payload: bytes) -> None:
        number = seq.to_bytes(8, "big")
        await self._socket.send_multipart([self._topic, number, payload])

    async def _answer(self) -> None:
        while True:
            who, _, first = await self._router.recv_multipart()
            self.num_asked += 1
            start = max(int.from_bytes(first, "big"), len(self._sent) - self._buffer)
            for seq in range(start, len(self._sent)):
                await self._reply(who, seq, self._sent[seq])
            await self._reply(who, -1, b"")

    async def _reply(self, who: bytes, seq: int, payload: bytes) -> None:
        number = seq.to_bytes(8, "big", signed=True)
        await self._router.send_multipart([who, b"", self._topic, number, payload])
