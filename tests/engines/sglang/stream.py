"""KV events of a real engine, as bytes and as what they say is held."""

from types import TracebackType

import zmq

from warmroute.adapters.kv_events.wire import (
    Removed,
    Stored,
    block_key,
    decode,
    tier_of,
)

_PATIENCE_MS = 30_000

Message = tuple[int, bytes]


class EventStream:
    """Bind where an engine connects to, and keep what it sends."""

    def __init__(self, endpoint: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.bind(endpoint)
        self.messages: list[Message] = []

    def __enter__(self) -> "EventStream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close(linger=0)

    @staticmethod
    def recorded(endpoint: str) -> list[Message]:
        """Return all batches that the engine can send again."""
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(endpoint)
            socket.send_multipart([b"", (0).to_bytes(8, "big")])
            messages: list[Message] = []
            while socket.poll(_PATIENCE_MS):
                *_, number, payload = socket.recv_multipart()
                seq = int.from_bytes(number, "big", signed=True)
                if seq < 0:
                    return messages
                messages.append((seq, payload))
            raise AssertionError("the replay has no end")
        finally:
            socket.close(linger=0)

    @staticmethod
    def replayed(endpoint: str, last_seq: int) -> "Held":
        """Apply all batches up to one."""
        held = Held()
        for seq, payload in EventStream.recorded(endpoint):
            if seq <= last_seq:
                held.apply(payload)
        return held


class Held:
    """Keep what events say is held, as naively as can be: sets of keys by tier."""

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = {"gpu": set(), "host": set(), "disk": set()}

    def apply(self, payload: bytes) -> None:
        """Apply one batch."""
        for event in decode(payload).events:
            if isinstance(event, Stored):
                self.held[tier_of(event.medium)].update(
                    map(block_key, event.block_hashes)
                )
            elif isinstance(event, Removed):
                keys = set(map(block_key, event.block_hashes))
                self.held[tier_of(event.medium)].difference_update(keys)
            else:
                for keys in self.held.values():
                    keys.clear()
