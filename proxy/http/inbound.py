"""The connection of a client: requests in, one answer at a time out.

llhttp parses in its strict mode; what it lets pass and two parsers could still read
differently is refused by RequestHead. Pipelined requests wait their turn here, and
nothing more is read while they wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import httptools

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import Headers, RequestHead
from warmroute.proxy.http.repeat import RepeatedHead
from warmroute.proxy.http.reply import error_answer

_NEVER = float("inf")
_LINGER_S = 5.0


class ReadLimits(NamedTuple):
    """What a client may send, and how long it may take; see the config."""

    head_bytes: int
    headers: int
    body_bytes: int
    header_s: float
    body_s: float
    keep_alive_s: float


class Work(Protocol):
    """A request being answered."""

    def begin(self) -> None:
        """Start; answers through the connection, sooner or later."""

    def client_gone(self) -> None:
        """Learn that nobody waits for the answer any more."""

    def client_writable(self, writable: bool) -> None:
        """Learn whether the client keeps up with the answer."""

    def expired(self) -> None:
        """Learn that the deadline set on the connection has passed."""

    def interrupted(self) -> None:
        """End now, with an error where the answer's form allows one."""


class Port(Protocol):
    """The listener that a connection belongs to."""

    read_limits: ReadLimits
    is_draining: bool

    def opened(self, connection: "ClientConnection") -> bool:
        """Count a new connection; False when there are too many."""

    def closed(self, connection: "ClientConnection") -> None:
        """Forget a connection."""

    def refused(self, error: ClientError) -> None:
        """Count a request that never became work."""

    def work(
        self, connection: "ClientConnection", head: RequestHead, body: bytes
    ) -> Work:
        """Make the work that answers a request."""


class ClientConnection(asyncio.Protocol):
    """One client; reads requests, and writes what the work says."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_discarding",
        "_head",
        "_headers",
        "_is_starting",
        "_known",
        "_message_bytes",
        "_parser",
        "_port",
        "_reading_paused",
        "_ready",
        "_refusal",
        "_target",
        "_work",
        "deadline",
        "peer",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Callable[[bytes], None]
    """Send bytes of the answer."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._parser = httptools.HttpRequestParser(self)
        self._ready: deque[tuple[RequestHead, bytes] | ClientError] = deque()
        self._known: RepeatedHead | None = None
        self._work: Work | None = None
        self._refusal: ClientError | None = None
        self._discarding = False
        self._is_starting = False
        self._reading_paused = False
        self.deadline = _NEVER
        self.peer = b"unknown"
        self._begin_message()

    def _begin_message(self) -> None:
        self._headers: Headers = []
        self._target = b""
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._message_bytes = 0

    def __repr__(self) -> str:
        return f"<ClientConnection {'busy' if self._work else 'idle'}>"

    # what work may do

    def finished(self, *, keep_alive: bool) -> None:
        """End the current answer and turn to the next request, or close."""
        self._work = None
        if not keep_alive or self._port.is_draining:
            self.deadline = time.monotonic() + _LINGER_S
            self.transport.close()
            return
        self.deadline = time.monotonic() + self._port.read_limits.keep_alive_s
        if self._ready:
            self._next()
        elif self._reading_paused and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """Cut the connection, so that a truncated answer shows as one."""
        self._work = None
        self.transport.abort()

    def expire(self) -> None:
        """Act on a deadline that has passed."""
        if self._work is not None:
            self._work.expired()
        elif self._discarding or self.transport.is_closing():
            self.transport.abort()
        elif self._message_bytes:
            part = "headers" if self._head is None else "body"
            self._refuse(
                ClientError(
                    408, "client_timeout", f"the request's {part} came too slowly"
                )
            )
        else:
            self.transport.close()

    def drain(self) -> None:
        """Close now if nothing is being answered; else after the answer."""
        if self._work is None and not self._message_bytes:
            self.transport.close()

    def shut_down(self) -> None:
        """Close now, whatever is being answered."""
        if self._work is not None:
            self._work.interrupted()
        self.transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a request."""
        self.transport = transport  # type: ignore[assignment]
        self.write = self.transport.write
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
        """Parse, then start what is complete."""
        if self._discarding:
            return
        is_first = not self._message_bytes and self._work is None
        if is_first:
            known = self._known
            if known is not None and (body := known.body_of(data)) is not None:
                known.head.repeat()
                self._start(known.head, body)
                return
            self.deadline = time.monotonic() + self._port.read_limits.header_s
        self._message_bytes += len(data)
        self._parse(data)
        if self._refusal is not None or self._message_bytes:
            self._check_progress()
        elif is_first and len(self._ready) == 1:
            self._learn(data)
        if self._ready and self._work is None:
            self._next()
        elif self._ready and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> None:
        """Treat a client that closed its side as gone, as the engines do."""
        if self._work is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the work that nobody waits any more."""
        self._port.closed(self)
        work, self._work = self._work, None
        self._discarding = True
        if work is not None:
            work.client_gone()

    def pause_writing(self) -> None:
        """Hold the engine back: the client reads too slowly."""
        if self._work is not None:
            self._work.client_writable(False)

    def resume_writing(self) -> None:
        """Let the engine go on."""
        if self._work is not None:
            self._work.client_writable(True)

    # httptools callbacks; an exception in one would be wrapped, so none raises

    def on_message_begin(self) -> None:
        """Notice a request that begins behind another one in the same bytes."""
        self._message_bytes = self._message_bytes or 1

    def on_url(self, url: bytes) -> None:
        """Collect the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; those after the body (trailers) are dropped."""
        if self._head is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head before the body comes."""
        if self._refusal is not None:
            return
        limits = self._port.read_limits
        parser = self._parser
        try:
            self._check_head(limits)
            self._head = head = RequestHead(
                parser.get_method(),
                self._target,
                parser.get_http_version(),
                self._headers,
            )
            if head.content_length > limits.body_bytes:
                raise _body_too_large(head.content_length, limits.body_bytes)
            if head.method == b"CONNECT":
                raise ClientError(
                    405, "method_not_allowed", "this proxy opens no tunnels"
                )
        except ClientError as error:
            self._refusal = error
            return
        if parser.should_upgrade():
            return
        if head.expects_continue and self._work is None and not self._ready:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, piece: bytes) -> None:
        """Collect the body up to its limit."""
        if self._refusal is not None:
            return
        self._body_bytes += len(piece)
        limit = self._port.read_limits.body_bytes
        if self._body_bytes > limit:
            self._body = []
            self._refusal = _body_too_large(self._body_bytes, limit)
            return
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """Queue the request; the next one may follow in the same bytes."""
        if self._parser.should_upgrade():
            return
        if self._refusal is None and self._head is not None:
            body = self._body
            whole = body[0] if len(body) == 1 else b"".join(body)
            self._ready.append((self._head, whole))
            self._begin_message()

    # internals

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._decline_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError as error:
                self._unreadable(error)
                return

    def _check_head(self, limits: ReadLimits) -> None:
        if len(self._headers) > limits.headers:
            raise ClientError(
                431,
                "too_many_headers",
                f"the request has {len(self._headers)} headers; at most "
                f"{limits.headers} are allowed (limits.headers)",
            )
        if self._message_bytes > limits.head_bytes:
            size = len(self._target) + sum(len(n) + len(v) for n, v in self._headers)
            if size > limits.head_bytes:
                raise _head_too_large(size, limits.head_bytes)

    def _check_progress(self) -> None:
        limits = self._port.read_limits
        if self._refusal is None and self._head is None:
            if self._message_bytes > limits.head_bytes:
                self._refusal = _head_too_large(self._message_bytes, limits.head_bytes)
        elif self._work is None:
            self.deadline = time.monotonic() + limits.body_s
        # Chunk framing may be larger than what it frames, but not without bound.
        if self._message_bytes > 2 * (limits.body_bytes + limits.head_bytes):
            self._refusal = self._refusal or _body_too_large(
                self._message_bytes, limits.body_bytes
            )
        if self._refusal is not None:
            self._enqueue_refusal(self._refusal)

    def _unreadable(self, error: httptools.HttpParserError) -> None:
        if self._refusal is not None:
            return
        if self._head is None and not self._headers and self._is_after_close():
            # Bytes behind the last request of a connection are of no one.
            self._discarding = True
            self._message_bytes = 0
            return
        self._refusal = ClientError(
            400, "bad_request", f"the request is not valid HTTP/1.1: {error}"
        )

    def _is_after_close(self) -> bool:
        last = self._ready[-1] if self._ready else None
        return isinstance(last, tuple) and not last[0].keeps_alive

    def _decline_upgrade(self, rest: bytes) -> bytes:
        """Return the request anew, as one that offers no upgrade (RFC 9110, 7.8).

        llhttp takes all that follows such a head for another protocol, the body too.
        """
        head, self._head = self._head, None
        self._parser = httptools.HttpRequestParser(self)
        if head is None or self._refusal is not None:
            return b""
        lines = [
            b"%b: %b\r\n" % (name, _without_upgrade(name, value))
            for name, value in self._headers
            if name.lower() not in (b"upgrade", b"http2-settings")
        ]
        self._headers, self._target = [], b""
        version = head.version.encode()
        start = b"%b %b HTTP/%b\r\n" % (head.method, head.target, version)
        return b"".join([start, *lines, b"\r\n", rest])

    def _enqueue_refusal(self, error: ClientError) -> None:
        self._discarding = True
        self._message_bytes = 0
        self._ready.append(error)

    def _next(self) -> None:
        if self._is_starting:
            return  # from a work that ended at once; the loop below goes on
        self._is_starting = True
        try:
            while (
                self._ready and self._work is None and not self.transport.is_closing()
            ):
                request = self._ready.popleft()
                if isinstance(request, ClientError):
                    self._refuse(request)
                else:
                    self._start(*request)
        finally:
            self._is_starting = False

    def _start(self, head: RequestHead, body: bytes) -> None:
        if len(body) > self._port.read_limits.body_bytes:
            self._refuse(_body_too_large(len(body), self._port.read_limits.body_bytes))
            return
        self._work = work = self._port.work(self, head, body)
        work.begin()

    def _learn(self, data: bytes) -> None:
        request = self._ready[0]
        if isinstance(request, tuple):
            self._known = RepeatedHead.learn(request[0], data, request[1])

    def _refuse(self, error: ClientError) -> None:
        self._discarding = True
        self._port.refused(error)
        self.write(error_answer(error, b"", close=True))
        # Closing with unread bytes would reset the connection and with it the
        # answer, so what still comes is read and dropped for a while.
        self.deadline = time.monotonic() + _LINGER_S
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._reading_paused and not self.transport.is_closing():
            self._reading_paused = False
            self.transport.resume_reading()


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    if name.lower() != b"connection":
        return value
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() != b"upgrade")


def _body_too_large(size: int, limit: int) -> ClientError:
    return ClientError(
        413,
        "body_too_large",
        f"the request body has at least {size} bytes; at most {limit} are allowed "
        "(limits.body_bytes)",
    )


def _head_too_large(size: int, limit: int) -> ClientError:
    return ClientError(
        431,
        "head_too_large",
        f"the request head has at least {size} bytes; at most {limit} are allowed "
        "(limits.head_bytes)",
    )
