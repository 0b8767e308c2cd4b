"""The connection of a client: requests in, one answer at a time out.

Pipelined requests wait their turn here, and nothing more is read while they wait.
"""

import asyncio
import time
from typing import Final

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.listener import Port
from warmroute.proxy.http.read_limits import (
    ReadLimits,
    body_too_large,
    too_much_buffered,
)
from warmroute.proxy.http.reply import error_answer
from warmroute.proxy.http.request_reader import RequestReader
from warmroute.proxy.http.work import Work

__all__ = ["ClientConnection", "Port", "ReadLimits"]

_NEVER: Final = float("inf")
_LINGER_S: Final = 5.0


class ClientConnection(asyncio.Protocol):
    """One client; reads requests, and writes what the work says."""

    __slots__ = (
        *(
            "_held_bytes",
            "_is_choked",
            "_is_starting",
            "_port",
            "_reader",
            "_reading_paused",
        ),
        *("_unsent", "_work"),
        *("deadline", "peer", "transport"),
    )

    transport: asyncio.Transport

    def __init__(self, port: Port) -> None:
        self._port = port
        self._reader = RequestReader(port.read_limits)
        self._work: Work | None = None
        self._is_choked = False  # the client takes less than it is sent
        self._is_starting = False
        self._reading_paused = False
        self._unsent = _NEVER
        self._held_bytes = 0
        self.deadline = _NEVER
        self.peer = b"unknown"

    def __repr__(self) -> str:
        return f"<ClientConnection {'busy' if self._work else 'idle'}>"

    # what work may do

    def write(self, data: bytes) -> None:
        """Send bytes of the answer."""
        self._port.outbox.write(self.transport, data)

    def finished(self, *, keep_alive: bool) -> None:
        """End the current answer and turn to the next request, or close."""
        self._work = None
        if self._held_bytes:
            self._hold(self._reader.message_bytes)
        if not keep_alive or self._port.is_draining:
            self.deadline = time.monotonic() + _LINGER_S
            self._close()
            return
        self.deadline = time.monotonic() + self._port.read_limits.keep_alive_s
        self._turn()

    def hand_over(self, work: Work) -> None:
        """Let *work* answer from here on, in the place of what waited for it."""
        self._work = work
        work.begin()
        if self._is_choked and self._work is work:
            work.client_writable(False)

    def abort(self) -> None:
        """Cut the connection, so that a truncated answer shows as one."""
        self._work = None
        self._hold(0)
        self._port.outbox.flush()
        self.transport.abort()

    def expire(self) -> None:
        """Act on a deadline that has passed."""
        reader = self._reader
        if self._work is not None:
            self._work.expired()
        elif self._takes_more():
            self.deadline = time.monotonic() + self._port.read_limits.idle_s
        elif reader.is_over or self.transport.is_closing():
            self.transport.abort()
        elif reader.message_bytes:
            part = "headers" if reader.head is None else "body"
            self._refuse(
                ClientError(
                    408, "client_timeout", f"the request's {part} came too slowly"
                )
            )
        else:
            self._close()

    def drain(self) -> None:
        """Close now if nothing is being answered; else after the answer."""
        if self._work is None and not self._reader.message_bytes:
            self._close()

    def shut_down(self) -> None:
        """Close now, whatever is being answered."""
        if self._work is not None:
            self._work.interrupted()
        self._close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a request."""
        self.transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = str(peer[0]).encode()
        self.deadline = time.monotonic() + self._port.read_limits.header_s
        if not self._port.opened(self):
            self._refuse(
                ClientError(
                    503,
                    "too_many_connections",
                    "the limit of open connections is reached (limits.connections)",
                    retry_after_s=1,
                )
            )

    def data_received(self, data: bytes) -> None:
        """Read, then start what is complete.

        What raises here is a fault of ours: the event loop logs it and closes the
        transport, so the client does not wait for an answer that will not come.
        """
        reader = self._reader
        if reader.is_over:
            return
        limits = self._port.read_limits
        is_free = self._work is None and not self._is_choked
        if is_free and not reader.message_bytes:
            known = reader.known
            if (
                known is not None
                and reader.limits is limits
                and (end := known.end_in(data))
            ):
                head = known.head
                head.repeat()
                self._start(head, data[end:])
                return
            self.deadline = time.monotonic() + limits.header_s
        before = reader.message_bytes
        reader.feed(data, limits)
        if reader.head is not None and not reader.is_over:
            self._hold_part(reader, reader.head, before)
        if is_free:
            if reader.ready:
                self._next()
            elif reader.head is not None:
                self._await_rest()
        elif reader.ready and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> None:
        """Treat a client that closed its side as gone, as the engines do."""
        if self._work is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the work that nobody waits any more."""
        self._port.closed(self)
        self._hold(0)
        work, self._work = self._work, None
        self._reader.stop()
        if work is not None:
            work.client_gone()

    def pause_writing(self) -> None:
        """Hold the engine back: the client reads too slowly."""
        self._is_choked = True
        if self._work is not None:
            self._work.client_writable(False)

    def resume_writing(self) -> None:
        """Let the engine go on, or the next request begin."""
        self._is_choked = False
        if self._work is not None:
            self._work.client_writable(True)
        else:
            self._turn()

    def _close(self) -> None:
        self._port.outbox.flush()
        self.transport.close()

    def _turn(self) -> None:
        """Turn to the next request, or to reading it, unless the client is choked."""
        reader = self._reader
        if self._is_choked or self.transport.is_closing():
            return
        if reader.ready:
            self._next()
            return
        if reader.message_bytes:
            self._await_rest()
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def _takes_more(self) -> bool:
        """Tell whether the client has taken some of what is still unsent."""
        unsent = self.transport.get_write_buffer_size()
        before, self._unsent = self._unsent, unsent or _NEVER
        return 0 < unsent < before

    def _await_rest(self) -> None:
        """Give the request that is being read the time of its part."""
        reader, limits = self._reader, self._port.read_limits
        patience_s = limits.header_s if reader.head is None else limits.body_s
        self.deadline = time.monotonic() + patience_s
        if reader.wants_continue:
            reader.wants_continue = False
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _next(self) -> None:
        if self._is_starting:
            return  # from a work that ended at once; the loop below goes on
        ready = self._reader.ready
        self._is_starting = True
        try:
            while ready and self._work is None and self._is_open():
                request = ready.popleft()
                if isinstance(request, ClientError):
                    self._refuse(request)
                else:
                    self._start(*request)
        except BaseException:
            # The caller may be another connection, whose end would not be ours.
            self.transport.abort()
            raise
        finally:
            self._is_starting = False

    def _is_open(self) -> bool:
        return not self._is_choked and not self.transport.is_closing()

    def _start(self, head: RequestHead, body: bytes) -> None:
        limits = self._port.read_limits
        if len(body) > limits.body_bytes:
            self._refuse(body_too_large(len(body), limits))
            return
        if body:
            self._hold(len(body) + self._reader.message_bytes)
            if self._port.held_bytes > limits.buffered_bytes:
                self._refuse(too_much_buffered(limits))
                return
        self._work = work = self._port.work(self, head, body)
        work.begin()

    def _hold(self, num_bytes: int) -> None:
        """Count what this client has here: being read, answered, or in between."""
        self._port.held_bytes += num_bytes - self._held_bytes
        self._held_bytes = num_bytes

    def _hold_part(self, reader: RequestReader, head: RequestHead, before: int) -> None:
        """Count what came of a body, or refuse it where the rest has no room."""
        port, size = self._port, reader.message_bytes
        self._hold(self._held_bytes + max(size - before, 0))
        rest = max(head.content_length - size, 0)
        if port.held_bytes + rest > port.read_limits.buffered_bytes:
            reader.refuse(too_much_buffered(port.read_limits))

    def _refuse(self, error: ClientError) -> None:
        self._reader.stop()
        self._hold(0)
        self._port.refused(error)
        self.write(error_answer(error, b"", close=True))
        # Closing with unread bytes would reset the connection and with it the
        # answer, so what still comes is read and dropped for a while.
        self.deadline = time.monotonic() + _LINGER_S
        self._port.outbox.flush()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._reading_paused and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()
