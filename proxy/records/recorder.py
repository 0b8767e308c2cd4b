"""From the request path to the file: a bounded queue, and a thread behind it."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from warmroute.proxy.config.records import RecordsConfig
from warmroute.proxy.ledger.decision import Decision
from warmroute.proxy.records.record import write_line
from warmroute.proxy.records.writer import RecordWriter
from warmroute.proxy.view.lookup import Chain, Lookup

logger = logging.getLogger(__name__)

MAX_QUEUED: Final = 8192
"""Records that wait for the thread; more are dropped and counted."""

MAX_QUEUED_BLOCKS: Final = 1 << 20
LINGER_S: Final = 0.1
"""One wake-up serves the records of so long."""

_BATCH: Final = 512
_TEXT_BLOCK_TOKENS: Final = 64.0

Entry = tuple[Decision, int, Sequence[int], str | None]


class Recorder:
    """Record settled requests, without a wait and without a failure of one.

    Args:
        config: Where to, and how much.
        linger_s: How long the thread lets records gather.

    Attributes:
        writer: Owns the file, and counts what is in it and what was lost.
        num_overflown: Records dropped because the queue was full.
    """

    __slots__ = (
        *("_closing", "_is_awake", "_linger_s", "_queue", "_queued_blocks"),
        *("_taken_blocks", "_thread", "_wake", "num_overflown", "writer"),
    )

    def __init__(self, config: RecordsConfig, linger_s: float = LINGER_S) -> None:
        self.writer = RecordWriter(config)
        self._linger_s = linger_s
        self._queue: deque[Entry] = deque()
        # Each has one writer, the loop or the thread: no lock.
        self._queued_blocks = self._taken_blocks = 0
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._is_awake = False
        self.num_overflown = 0
        # A daemon, so that a disk that hangs cannot keep the process.
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Recorder {self.writer!r} queued={len(self._queue)}>"

    def configure(self, config: RecordsConfig) -> None:
        """Take over another configuration, from the next record on.

        A path that cannot be written is told without one.
        """
        self.writer.config = config
        self._wake.set()

    def add(self, decision: Decision, lookup: Lookup, session: str | None) -> None:
        """Queue the record of a settled *decision*; those without a prompt have none.

        O(hashes recorded).
        """
        if decision.grade == "none":
            return
        queue = self._queue
        if (
            len(queue) >= MAX_QUEUED
            or self._queued_blocks - self._taken_blocks >= MAX_QUEUED_BLOCKS
        ):
            self.num_overflown += 1
            return
        block_size, blocks = self._blocks(lookup)
        self._queued_blocks += len(blocks)
        queue.append((decision, block_size, blocks, session))
        if not self._is_awake:
            self._is_awake = True
            self._wake.set()

    def close(self, timeout_s: float) -> bool:
        """Write what is queued; return whether that was done in time."""
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _blocks(self, lookup: Lookup) -> tuple[int, Sequence[int]]:
        for chains in lookup.chains.values():
            if chains:
                return thinned(chains[0], self.writer.config.tokens_per_hash)
            break
        return 0, ()

    def _run(self) -> None:
        self.writer.write([])  # a path that cannot be written is told at the start
        is_open = True
        while is_open:
            self._wake.wait()
            self._closing.wait(self._linger_s)
            is_open = not self._closing.is_set()
            self._wake.clear()
            # Before the queue is read: who adds behind the last look wakes us again.
            self._is_awake = False
            try:
                self._drain()
            except Exception:
                logger.exception("records_broke")
        self.writer.close()

    def _drain(self) -> None:
        queue = self._queue
        if not queue:  # woken by another configuration: its path is tried
            self.writer.write([])
        while queue:
            entries = [queue.popleft() for _ in range(min(len(queue), _BATCH))]
            self._taken_blocks += sum(len(entry[2]) for entry in entries)
            self.writer.write([write_line(*entry) for entry in entries])


def thinned(chain: Chain, tokens_per_hash: int) -> tuple[int, Sequence[int]]:
    """Return tokens a hash, and every k-th hash of *chain*.

    For text, *k* does not follow what is learned of bytes a token: the same text has
    the same hashes, early and late.
    """
    unit = _TEXT_BLOCK_TOKENS if chain.is_text else chain.unit
    stride = max(1, -int(-tokens_per_hash // unit))
    return round(stride * chain.unit), chain.hashes[stride - 1 :: stride]
