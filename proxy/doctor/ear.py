"""Hear what engines publish, for long enough to find one prompt's blocks."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio

from warmroute.adapters.base import EventAddress
from warmroute.adapters.kv_events.socket import ask_again
from warmroute.adapters.kv_events.subscriptions import Subscriptions
from warmroute.adapters.kv_events.wire import Batch, Event, Stored, decode
from warmroute.policies.errors import ProtocolMismatch

_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Heard:
    """Hold the event that announced a prompt's first blocks.

    Args:
        source: Who published it.
        seq: Number of its message.
        payload: The message.
        event: The event.
        timestamp: When the engine made it, in seconds of its wall clock.
        received: When it came, in seconds of ours.
    """

    source: EventAddress
    seq: int
    payload: bytes
    event: Stored
    timestamp: float
    received: float


class Listening:
    """What came from the sources of one backend since it began.

    Attributes:
        heard: The first event of a prompt that was expected.
        num_messages: Messages that came.
        num_unreadable: Those of them that were no batch of events.
        is_connected: Whether some connection was seen to be made.
    """

    __slots__ = (
        "_came",
        "_expected",
        "_num_sources",
        "_subscriptions",
        "heard",
        "is_connected",
        "num_messages",
        "num_unreadable",
    )

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self._came = asyncio.Event()
        self._expected: list[Sequence[int]] = []
        self._num_sources = 0
        self.heard: Heard | None = None
        self.num_messages = 0
        self.num_unreadable = 0
        self.is_connected = False

    def __repr__(self) -> str:
        return f"<Listening to {self._num_sources}: {self.num_messages} messages>"

    def add(self, source: EventAddress) -> None:
        """Begin to hear a source.

        Raises:
            AdapterError: Its address cannot be used.
        """
        self._subscriptions.add(source, self._receiver(source), self._turned)
        self._num_sources += 1

    async def connected(self, timeout_s: float) -> bool:
        """Wait until a connection is made or something came; tell whether."""
        return await self._until(
            lambda: self.is_connected or self.num_messages > 0, timeout_s
        )

    def expect(self, prompt: Sequence[int]) -> None:
        """Look out for a prompt that is about to be sent, and for those before."""
        self._expected.append(prompt)

    async def announced(self, timeout_s: float) -> Heard | None:
        """Wait for the blocks of a prompt expected; None if they do not come."""
        await self._until(lambda: self.heard is not None, timeout_s)
        return self.heard

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            return False
        return True

    def _receiver(self, source: EventAddress) -> Callable[[int, bytes], None]:
        def receive(seq: int, payload: bytes) -> None:
            self._received(source, seq, payload)

        return receive

    def _received(self, source: EventAddress, seq: int, payload: bytes) -> None:
        self.num_messages += 1
        self._came.set()
        if self.heard is not None:
            return
        try:
            batch: Batch = decode(payload)
        except ProtocolMismatch:
            self.num_unreadable += 1
            return
        found = next(filter(self._is_expected, batch.events), None)
        if isinstance(found, Stored):
            made, now = batch.timestamp, time.time()
            self.heard = Heard(source, seq, payload, found, made, now)

    def _is_expected(self, event: Event) -> bool:
        """Tell whether an event is of the head of a prompt expected."""
        if not isinstance(event, Stored) or event.parent_block_hash is not None:
            return False
        return any(_begins(event, prompt) for prompt in self._expected)

    def _turned(self) -> None:
        self.is_connected = True
        self._came.set()


class Ear:
    """The sockets of one examination; needs a running loop."""

    __slots__ = ("_asking", "_context", "_subscriptions")

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._asking = zmq.asyncio.Context()
        self._subscriptions = Subscriptions(self._context)

    def __repr__(self) -> str:
        return f"<Ear {self._subscriptions!r}>"

    def listen(self) -> Listening:
        """Make something to hear sources with, until all of this is closed.

        ZMQ gives an address back some time after a socket is closed; the next
        backend that shares it would find it taken.
        """
        return Listening(self._subscriptions)

    async def replays(self, endpoint: str, heard: Heard | None) -> bool:
        """Ask for a message again; tell whether it came and is the same.

        Without one it is asked for what never was, and the end of the replay will do.

        Raises:
            BackendUnavailable: Nobody answers there.
        """
        first = _NEVER if heard is None else heard.seq
        is_same = heard is None
        async for seq, payload in ask_again(self._asking, endpoint, first):
            if heard is not None and seq == heard.seq:
                is_same = payload == heard.payload
        return is_same

    def close(self) -> None:
        """Close every socket."""
        self._subscriptions.close()
        self._context.destroy(linger=0)
        self._asking.destroy(linger=0)


def _begins(event: Stored, prompt: Sequence[int]) -> bool:
    """Tell whether an event without a parent is of the head of a prompt."""
    length = min(len(event.token_ids), len(prompt))
    return length > 0 and event.token_ids[:length] == [*prompt[:length]]
