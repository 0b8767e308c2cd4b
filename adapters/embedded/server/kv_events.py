"""Publish KV events over ZeroMQ, as vLLM 0.32 does, with replay.

Three parties meet here, and none waits for another. The compute thread encodes its
batches and gives them to ZeroMQ itself, so that the events of a step are on their way
before it is computed, whatever the other threads are doing. The publisher's own thread
answers replays. Subscribers read at their own pace.

What is lost when somebody falls behind always shows as a gap in the sequence: a
subscriber that lags by more than *hwm* batches misses those that follow until it
catches up. It can have them replayed while they are among the newest *buffer_steps*;
what is older only a snapshot heals.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq

from warmroute.adapters.embedded.server.kv_sockets import KVSockets
from warmroute.adapters.embedded.server.kv_wire import (
    END_SEQ,
    SEQ_BYTES,
    KVEvent,
    KVEventBatch,
)

LINGER_MS = 1_000

logger = logging.getLogger(__name__)


class KVEventPublisher:
    """Send batches of KV events to subscribers, and again to who missed some.

    `start` takes the addresses, `publish` never waits for a subscriber or a replay, and
    `close` sends what was handed over before it returns.

    Args:
        endpoint: Address of the PUB socket; see `KVSockets`.
        replay_endpoint: Address that the replay ROUTER binds; None offers no replay.
        topic: First frame of each message.
        buffer_steps: Newest batches kept for replay.
        hwm: Batches queued for one slow subscriber.
        max_pending: Batches kept that are handed over before the start.
        rank: Data-parallel rank, written into each batch.
        interface: What ``*`` stands for in an address.
        clock: Wall-clock time in seconds.
        context: ZeroMQ context; the process's own by default.
    """

    __slots__ = (
        "_buffer",
        "_clock",
        "_context",
        "_encode",
        "_has_failed",
        "_interface",
        "_lock",
        "_next_seq",
        "_num_dropped",
        "_pending",
        "_rank",
        "_sockets",
        "_thread",
        "_topic",
        "_wake_reader",
        "_wake_writer",
        "endpoint",
        "hwm",
        "replay_endpoint",
    )

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        topic: str = "",
        *,
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
        max_pending: int = 100_000,
        rank: int = 0,
        interface: str = "*",
        clock: Callable[[], float] = time.time,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    ) -> None:
        self.endpoint = endpoint
        self.replay_endpoint = replay_endpoint
        self.hwm = hwm
        self._topic = topic.encode()
        self._rank = rank
        self._interface = interface
        self._clock = clock
        self._context = context or zmq.Context.instance()
        self._encode = msgspec.msgpack.Encoder().encode
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._pending: deque[tuple[int, KVEventBatch]] = deque(maxlen=max_pending)
        self._next_seq = 0
        self._num_dropped = 0
        self._has_failed = False
        self._lock = threading.Lock()
        self._sockets: KVSockets | None = None
        self._thread: threading.Thread | None = None
        self._wake_reader = self._wake_writer = -1

    def __repr__(self) -> str:
        replay = self.replay_endpoint or "none"
        return (
            f"<KVEventPublisher {self.endpoint}: next seq {self._next_seq}, "
            f"{self._num_dropped} dropped, replay {replay}>"
        )

    @property
    def last_seq(self) -> int | None:
        """Sequence number of the last batch handed over; None before the first."""
        return self._next_seq - 1 if self._next_seq else None

    @property
    def num_dropped(self) -> int:
        """Batches that no subscriber was sent: too early, or ZeroMQ failed."""
        return self._num_dropped

    def source(self) -> dict[str, object]:
        """Describe this publisher as vLLM does at ``/kv_event_sources``."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self._buffer.maxlen,
            "hwm": self.hwm,
            "max_queue_size": self._pending.maxlen,
            "topic": self._topic.decode(),
        }

    def start(self) -> None:
        """Take the addresses, and start the thread; port 0 becomes a real port.

        Raises:
            ConfigError: An address is malformed.
            EndpointUnusable: An address is taken, or not of this machine.
        """
        sockets = KVSockets(
            self._context, self.hwm, self._buffer.maxlen or 0, self._interface
        )
        try:
            self.endpoint = sockets.open_publisher(self.endpoint)
            if self.replay_endpoint is not None:
                self.replay_endpoint = sockets.open_replay(self.replay_endpoint)
        except BaseException:
            sockets.close(0)
            raise
        self._wake_reader, self._wake_writer = os.pipe()
        with self._lock:
            self._sockets = sockets
            while self._pending:
                self._send(*self._pending.popleft())
        self._thread = threading.Thread(
            target=self._run, args=(sockets,), name="kv-events", daemon=True
        )
        self._thread.start()

    def publish(self, events: Sequence[KVEvent]) -> int:
        """Send a batch, and return its sequence number; raises nothing.

        It is ZeroMQ's when this returns, which drops it for subscribers that lag. From
        any thread, one after the other.
        """
        with self._lock:
            batch = KVEventBatch(self._clock(), list(events), self._rank)
            seq = self._next_seq
            self._next_seq = seq + 1
            if self._sockets is None:
                self._num_dropped += len(self._pending) == self._pending.maxlen
                self._pending.append((seq, batch))
            else:
                self._send(seq, batch)
        return seq

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what was handed over, then stop the thread and close the sockets.

        Subscribers that do not read get a second, then lose what they left.
        """
        if self._thread is None:
            return
        os.write(self._wake_writer, b"\0")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.error("kv_events_close_timed_out endpoint=%s", self.endpoint)
            return
        self._thread = None
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _send(self, seq: int, batch: KVEventBatch) -> None:
        """Send a batch and keep it; the lock is held, as a socket is no thread's."""
        assert self._sockets is not None
        payload = self._encode(batch)
        self._buffer.append((seq, payload))
        try:
            number = seq.to_bytes(SEQ_BYTES, "big")
            self._sockets.publish((self._topic, number, payload))
        except Exception:  # it must never reach the engine
            self._num_dropped += 1
            if not self._has_failed:
                logger.exception("kv_events_failed endpoint=%s", self.endpoint)
            self._has_failed = True
        else:
            self._has_failed = False

    def _run(self, sockets: KVSockets) -> None:
        poller = zmq.Poller()
        poller.register(self._wake_reader, zmq.POLLIN)
        if sockets.replay is not None:
            poller.register(sockets.replay, zmq.POLLIN)
        try:
            while self._wake_reader not in (ready := dict(poller.poll())):
                if sockets.replay in ready:
                    self._answer_replay(sockets)
        except Exception:
            logger.exception("kv_events_failed endpoint=%s", self.endpoint)
        finally:
            with self._lock:
                self._sockets = None
                sockets.close(LINGER_MS)

    def _answer_replay(self, sockets: KVSockets) -> None:
        asked = sockets.receive_replay()
        if asked is None:
            return
        client, start = asked
        with self._lock:
            kept = list(self._buffer)
        for seq, payload in kept:
            if seq >= start:
                number = seq.to_bytes(SEQ_BYTES, "big")
                sockets.send_replay((client, b"", self._topic, number, payload))
        sockets.send_replay((client, b"", b"", END_SEQ, b""))
