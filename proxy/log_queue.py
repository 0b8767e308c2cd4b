"""Log lines on their way out, so that nobody waits for who reads them.

A line is made and written by a thread. Its caller only takes down what would be
another thing by then: the context's ids, facts that may change, a traceback.
"""

import io
import logging
import os
import select
from collections.abc import Callable
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Final, TextIO

MAX_LINES: Final = 4096
FLUSH_S: Final = 1.0


class LineWriter:
    """Write lines to a stream; those that it does not take are counted.

    The next line that it takes has their number as its fact ``log_lines_lost``. No
    lock is held meanwhile, neither the stream's own nor that of a handler: whoever
    stands still here would keep the process from ending.

    Args:
        stream: Written to by its file descriptor, where it has one.
        formatter: Makes the lines; another one may be put in its place.
    """

    __slots__ = ("_num_failed", "formatter", "stream")

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        self.stream = stream
        self.formatter = formatter
        self._num_failed = 0

    def __repr__(self) -> str:
        return f"<LineWriter {self._num_failed} lost>"

    def write(self, record: logging.LogRecord) -> None:
        """Write the line of *record*; raises nothing."""
        lost = getattr(record, "log_lines_lost", 0) + self._num_failed
        if lost:
            record.log_lines_lost = lost
        try:
            self._write(f"{self.formatter.format(record)}\n")
            self._num_failed = 0
        except Exception:  # a full disk, no reader, a closed stream, an odd fact
            self._num_failed = lost + 1

    def _write(self, text: str) -> None:
        stream = self.stream
        try:
            target = stream.fileno()
        except io.UnsupportedOperation:
            stream.write(text)
            stream.flush()
            return
        data = memoryview(text.encode(stream.encoding, "backslashreplace"))
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(target, select.POLLOUT)
                poll.poll()


class LogQueue(QueueHandler):
    """Hand lines to a writer in another thread, at most `MAX_LINES` of them.

    Lines beyond that are dropped; the next one that finds room says how many. A fork
    begins with an empty queue and a thread of its own.

    Args:
        writer: Formats and writes; called in the thread.
        settle: Makes a copy of a record that is the same whenever it is formatted.
    """

    queue: "SimpleQueue[Any]"

    def __init__(
        self,
        writer: LineWriter,
        settle: Callable[[logging.LogRecord], logging.LogRecord],
    ) -> None:
        super().__init__(SimpleQueue())
        self.writer = writer
        self._settle = settle
        self._num_lost = 0
        self._listener = _Listener(self.queue, writer)

    def __repr__(self) -> str:
        return f"<LogQueue {self.queue.qsize()} waiting, {self._num_lost} lost>"

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return what is put into the queue."""
        return self._settle(record)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put *record* into the queue, or count it as lost."""
        if self.queue.qsize() >= MAX_LINES:
            self._num_lost += 1
            return
        if self._num_lost:
            record.log_lines_lost, self._num_lost = self._num_lost, 0
        self.queue.put_nowait(record)

    def restart(self) -> None:
        """Begin anew in a fork, which has the queue but not the thread."""
        self.queue = SimpleQueue()
        self._listener = _Listener(self.queue, self.writer)

    def close(self) -> None:
        """Write what waits, for `FLUSH_S` at most; what is left then is lost."""
        self._listener.finish(FLUSH_S)
        super().close()


class _Listener(QueueListener):
    """The thread; a daemon, so that one who reads no more cannot keep the process."""

    def __init__(self, queue: "SimpleQueue[Any]", writer: LineWriter) -> None:
        super().__init__(queue)
        self._writer = writer
        self.start()

    def handle(self, record: logging.LogRecord) -> None:
        """Write the line of *record*."""
        self._writer.write(record)

    def finish(self, timeout_s: float) -> None:
        """End behind what is queued, or when time runs out."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self.enqueue_sentinel()
            thread.join(timeout_s)
