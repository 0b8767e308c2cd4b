"""The connection towards an engine: one request at a time, bytes as they come.

llhttp judges the framing of what passes; the bytes themselves are handed on as
received. A connection whose engine sends more than it announced, or anything while
idle, is closed and never used again: response smuggling ends here.
"""

import asyncio
from typing import Final

import httptools

from warmroute.proxy.http.answer import Answer
from warmroute.proxy.http.chunk import content_start
from warmroute.proxy.http.outbox import Outbox
from warmroute.proxy.http.receiver import Receiver, Sink
from warmroute.proxy.http.repeat import RepeatedHead

__all__ = ["MAX_HEAD_BYTES", "Answer", "Receiver", "Sink", "UpstreamConnection"]

MAX_HEAD_BYTES: Final = 65536


class UpstreamConnection(asyncio.Protocol):
    """One connection to a backend, kept for the next request where possible."""

    __slots__ = (
        *("_answer", "_at_boundary", "_bodiless", "_complete", "_early", "_excess"),
        *("_head", "_headers_seen", "_in_chunks", "_keep_alive", "_known", "_parser"),
        *("_outbox", "_piece", "_receiver", "_sink", "_tail"),
        *("has_answered", "is_reused", "released_at", "transport"),
    )

    transport: asyncio.Transport

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._sink: Sink | None = None
        self._answer: Answer | None = None
        self._head = b""
        self._known: RepeatedHead[Answer] | None = None
        self._early: list[bytes] = []
        self._bodiless = False
        self._excess = False
        self._keep_alive = True
        self._at_boundary = True
        self._in_chunks = False
        self._piece = self._tail = b""
        self._headers_seen = False
        self._complete = False
        self.has_answered = False
        self.is_reused = False
        self.released_at = 0.0

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "busy" if self._receiver else "idle"
        return f"<UpstreamConnection {state}>"

    @property
    def is_closed(self) -> bool:
        """Tell whether the connection is of no more use."""
        return self.transport.is_closing()

    @property
    def at_chunk_boundary(self) -> bool:
        """Tell whether an own chunk could follow what was passed on so far."""
        return self._at_boundary and self._tail[-1:] in (b"", b"\n")

    def send(
        self, receiver: Receiver, head: bytes, body: bytes, *, bodiless: bool = False
    ) -> None:
        """Send one request; its answer goes to *receiver*.

        *bodiless* says that the answer has no body whatever its head announces (HEAD).
        """
        self._receiver = receiver
        self._bodiless = bodiless
        self._answer = None
        self._headers_seen = self._complete = self.has_answered = False
        self._at_boundary = True
        self._in_chunks = False
        # One segment for small requests; no copy of the large ones.
        if len(body) < 16384:
            self._outbox.write(self.transport, head + body)
        else:
            self._outbox.write(self.transport, head)
            self._outbox.write(self.transport, body)

    def abort(self) -> None:
        """Close at once; the engine sees the client as gone."""
        self._receiver = self._sink = None
        self.transport.abort()

    def pause(self) -> None:
        """Stop reading while the client does not keep up."""
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer."""
        receiver = self._receiver
        if receiver is None:
            self.transport.abort()
            return
        if self._answer is None:
            self.has_answered = True
            known = self._known
            if (
                known is not None
                and not self._head
                and not self._bodiless
                and (end := known.end_in(data))
            ):
                self._repeat(receiver, known.head, data, end)
            else:
                self._read_head(receiver, data)
        elif not self._take(self._answer, data):
            return
        if self._complete:
            self._finish()

    def eof_received(self) -> None:
        """Let a body that is delimited by the close end here."""
        answer = self._answer
        if answer is not None and answer.body_until_close and self._receiver:
            self._keep_alive = False
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report an answer that will not come, or not wholly."""
        self._head = b""
        if self._receiver is not None:
            self._fail("reset" if exc is not None else "closed")

    # httptools callbacks

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for."""
        self._excess = self._complete

    def on_headers_complete(self) -> None:
        """Note that llhttp has read the head."""
        self._headers_seen = True

    def on_body(self, piece: bytes) -> None:
        """Show a piece of the body."""
        self._piece = piece
        if self._sink is not None:
            self._sink.body(piece)
        else:
            self._early.append(piece)

    def on_chunk_header(self) -> None:
        """Note that a chunk has begun."""
        self._at_boundary = False
        self._in_chunks = True

    def on_chunk_complete(self) -> None:
        """Note that an own chunk could follow."""
        self._at_boundary = True

    def on_message_complete(self) -> None:
        """Note the end, and whether the connection can be kept."""
        self._complete = True
        self._keep_alive = self._parser.should_keep_alive()

    def _take(self, answer: Answer, data: bytes) -> bool:
        """Hand on bytes behind the head; False when they broke the answer."""
        sink = self._sink
        assert sink is not None  # set with the answer
        if (
            self._in_chunks
            and self.at_chunk_boundary
            and (start := content_start(data))
        ):
            # Between two chunks llhttp would say nothing new of a whole one.
            self._tail = b""
            sink.body(data[start:-2])
            sink.data(data)
            return True
        self._tail = data if len(data) > 4 else self._tail[-4:] + data
        if not self._feed(data):
            return False
        if self._complete and not self._fits(answer, data):
            return False
        sink.data(data)
        return True

    def _feed(self, data: bytes) -> bool:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("protocol error")
            return False
        if self._excess:
            self._fail("more bytes than announced")
        return not self._excess

    def _fits(self, answer: Answer, data: bytes) -> bool:
        """Fail on line ends behind a complete answer; llhttp skips them."""
        tail = self._tail
        if answer.chunked:
            is_exact = tail[-4:] == b"\r\n\r\n" and tail[-5:-4] not in b"\r\n"
        else:
            is_exact = len(self._piece) == len(data)
        if not is_exact:
            self._fail("more bytes than announced")
        return is_exact

    def _repeat(self, receiver: Receiver, known: Answer, data: bytes, end: int) -> None:
        """Take a whole answer, to which llhttp would say nothing new."""
        self._complete = self._keep_alive = True
        self._answer = answer = Answer(known.status, data[: end - 2], known)
        body = data[end:]
        sink = receiver.answer_started(answer)
        if body:
            sink.body(body)
        sink.data(body)

    def _read_head(self, receiver: Receiver, data: bytes) -> None:
        if self._head:
            data = self._head + data
            self._head = b""
        end = data.find(b"\r\n\r\n") + 4
        # Interim answers (100, 103) are complete with their heads.
        while end > 3 and data[8:10] == b" 1":
            if not self._feed(data[:end]):
                return
            self._headers_seen = self._complete = False
            data = data[end:]
            end = data.find(b"\r\n\r\n") + 4
        if end > 3:
            self._start(receiver, data, end)
        elif len(data) > MAX_HEAD_BYTES:
            self._fail("head too large")
        else:
            self._head = data

    def _start(self, receiver: Receiver, data: bytes, end: int) -> None:
        early = self._early
        early.clear()
        self._piece = self._tail = b""
        if not self._feed(data):
            return
        if not self._headers_seen or data[:7] != b"HTTP/1.":
            self._fail("protocol error")
            return
        status = self._parser.get_status_code()
        raw = data[: end - 2]
        self._answer = answer = Answer(status, raw)
        rest = data[end:]
        if self._bodiless:
            # llhttp would wait for the body that the head announces.
            self._complete, self._keep_alive, rest = True, False, b""
            answer.body_until_close = False
            early.clear()
        elif self._complete:
            self._tail = rest
            if not self._fits(answer, rest):
                return
            self._known = None
            # A head that lost lines on the way could lose others the next time.
            is_plain = not answer.chunked and answer.raw is raw
            if is_plain and self._keep_alive and status not in (204, 304):
                self._known = RepeatedHead.learn(answer, data, len(rest))
        else:
            self._tail = rest
        self._sink = sink = receiver.answer_started(answer)
        for piece in early:
            sink.body(piece)
        sink.data(rest)

    def _finish(self) -> None:
        receiver, self._receiver, self._sink = self._receiver, None, None
        # Behind an unsent body the next request would wait for the engine to read it.
        if not self._keep_alive or self.transport.get_write_buffer_size():
            self.transport.abort()
        if receiver is not None:
            receiver.answer_ended()

    def _fail(self, reason: str) -> None:
        receiver, self._receiver, self._sink = self._receiver, None, None
        self.transport.abort()
        if receiver is not None:
            receiver.answer_lost(reason)
