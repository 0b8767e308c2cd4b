"""A subscriber to KV events over real sockets, as simple as can be."""

from typing import Any, NamedTuple

import msgspec
import zmq

WAIT_MS = 10_000
JOIN_MS = 20


class Message(NamedTuple):
    """Hold one received message, decoded."""

    topic: bytes
    seq: int
    batch: Any


class Subscriber:
    """Read KV events, live and by replay.

    Args:
        endpoint: Address to subscribe at.
        binds: Whether to bind it, for a publisher that connects.
        hwm: Messages queued before the publisher has to queue them.
        topic: Prefix of the topics wanted.
    """

    def __init__(
        self, endpoint: str, *, binds: bool = False, hwm: int = 1000, topic: str = ""
    ) -> None:
        self._context = zmq.Context.instance()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVHWM, hwm)
        if "[" in endpoint:
            self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.endpoint = endpoint
        if binds:
            self._socket.bind(endpoint)
            self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        else:
            self._socket.connect(endpoint)

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close(linger=0)

    def join(self, publisher: Any) -> Message:
        """Publish empty batches until one arrives: the subscription stands then."""
        for _ in range(WAIT_MS // JOIN_MS):
            publisher.publish([])
            if self._socket.poll(JOIN_MS):
                return self.next()
        raise AssertionError(f"no message arrived from {publisher!r}")

    def next(self) -> Message:
        """Return the next message, whose batch is plain lists and dicts."""
        assert self._socket.poll(WAIT_MS), "no message arrived"
        return decoded(self._socket.recv_multipart())

    def until(self, seq: int) -> list[Message]:
        """Return the messages up to the one with *seq*."""
        messages = [self.next()]
        while messages[-1].seq < seq:
            messages.append(self.next())
        return messages


def replay(endpoint: str, start: int) -> list[Message]:
    """Ask for the batches from *start* on, and return them."""
    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        messages = []
        while True:
            assert dealer.poll(WAIT_MS), "the replay did not end"
            empty, *frames = dealer.recv_multipart()
            assert empty == b""
            if frames[1] == b"\xff" * 8:
                assert frames == [b"", b"\xff" * 8, b""]
                return messages
            messages.append(decoded(frames))


def decoded(frames: list[bytes]) -> Message:
    """Decode the frames of one message."""
    topic, seq, payload = frames
    assert len(seq) == 8
    return Message(topic, int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload))
