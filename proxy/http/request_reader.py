"""The bytes of a client on their way to requests; no I/O, no clock.

llhttp parses in its strict mode; what it lets pass and two parsers could still read
differently is refused by RequestHead. A refusal is queued behind the requests before
it, and is the last that is read.
"""

from collections import deque

import httptools

from warmroute.policies.errors import ClientError
from warmroute.proxy.http.head import Headers, RequestHead
from warmroute.proxy.http.read_limits import (
    ReadLimits,
    body_too_large,
    head_too_large,
    too_many_headers,
)
from warmroute.proxy.http.repeat import RepeatedHead

Request = tuple[RequestHead, bytes]


class RequestReader:
    """Read the requests of one client, in order, within the limits.

    Attributes:
        ready: Whole requests that nobody has taken yet; behind them the refusal of
            what came next, if it was refused.
        head: The head of a request whose body is not whole yet.
        message_bytes: What came of a request that is not whole yet; 0 between two.
        wants_continue: That request waits for 100 Continue; whoever says it, resets it.
        is_over: Nothing that still comes will be read.
        known: A head that needs no parser when it comes again between two requests;
            good while *limits* are the ones in force.
        limits: The limits that what was fed last was judged by.
    """

    __slots__ = (
        *("_body", "_body_bytes", "_headers", "_parser", "_refusal", "_target"),
        *("head", "is_over", "known", "limits", "message_bytes", "ready"),
        "wants_continue",
    )

    def __init__(self, limits: ReadLimits) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._refusal: ClientError | None = None
        self.ready: deque[Request | ClientError] = deque()
        self.known: RepeatedHead[RequestHead] | None = None
        self.limits = limits
        self.is_over = False
        self._begin_message()

    def _begin_message(self) -> None:
        self._headers: Headers = []
        self._target = b""
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self.head: RequestHead | None = None
        self.message_bytes = 0
        self.wants_continue = False

    def __repr__(self) -> str:
        state = "over" if self.is_over else f"{self.message_bytes} bytes begun"
        return f"<RequestReader {len(self.ready)} ready, {state}>"

    def feed(self, data: bytes, limits: ReadLimits) -> None:
        """Read *data*; what is whole after that is in `ready`."""
        if limits is not self.limits:
            self.limits = limits
            self.known = None
        is_first = not self.message_bytes and not self.ready
        self.message_bytes += len(data)
        self._parse(data)
        if self._refusal is not None or self.message_bytes:
            self._check_size()
        elif is_first and len(self.ready) == 1:
            self._learn(data)

    def stop(self) -> None:
        """Read nothing more."""
        self.is_over = True

    # httptools callbacks; an exception in one would be wrapped, so none raises

    def on_message_begin(self) -> None:
        """Notice a request that begins behind another one in the same bytes."""
        self.message_bytes = self.message_bytes or 1

    def on_url(self, url: bytes) -> None:
        """Collect the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; those after the body (trailers) are dropped."""
        if self.head is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head before the body comes."""
        if self._refusal is not None:
            return
        try:
            self.head = self._read_head()
        except ClientError as error:
            self._refusal = error

    def on_body(self, piece: bytes) -> None:
        """Collect the body up to its limit."""
        if self._refusal is not None:
            return
        self._body_bytes += len(piece)
        if self._body_bytes > self.limits.body_bytes:
            self._body = b""
            self._refusal = body_too_large(self._body_bytes, self.limits)
        elif not self._body:
            self._body = piece  # mostly the whole: no copy
        elif isinstance(self._body, bytearray):
            self._body += piece
        else:
            self._body = bytearray(self._body) + piece

    def on_message_complete(self) -> None:
        """Queue the request; the next one may follow in the same bytes."""
        if self._parser.should_upgrade():
            return
        if self._refusal is None and self.head is not None:
            self.ready.append((self.head, bytes(self._body)))
            self._begin_message()

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._decline_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserCallbackError:
                raise  # a fault of ours; no client shall be blamed for it
            except httptools.HttpParserError as error:
                self._unreadable(error)
                return

    def _read_head(self) -> RequestHead:
        limits, parser = self.limits, self._parser
        self._check_head(limits)
        head = RequestHead(
            parser.get_method(),
            self._target,
            parser.get_http_version(),
            self._headers,
        )
        if head.content_length > limits.body_bytes:
            raise body_too_large(head.content_length, limits)
        if head.method == b"CONNECT":
            raise ClientError(405, "method_not_allowed", "this proxy opens no tunnels")
        self.wants_continue = head.expects_continue and not parser.should_upgrade()
        return head

    def _check_head(self, limits: ReadLimits) -> None:
        if len(self._headers) > limits.headers:
            raise too_many_headers(len(self._headers), limits)
        if self.message_bytes > limits.head_bytes:
            size = len(self._target) + sum(len(n) + len(v) for n, v in self._headers)
            if size > limits.head_bytes:
                raise head_too_large(size, limits)

    def _check_size(self) -> None:
        limits, size = self.limits, self.message_bytes
        if self._refusal is None:
            if self.head is None and size > limits.head_bytes:
                self._refusal = head_too_large(size, limits)
            # Chunk framing may be larger than what it frames, but not without bound.
            elif size > 2 * (limits.body_bytes + limits.head_bytes):
                self._refusal = body_too_large(size, limits)
        if self._refusal is not None:
            self._end()
            self.ready.append(self._refusal)

    def _unreadable(self, error: httptools.HttpParserError) -> None:
        if self._refusal is not None:
            return
        if self.head is None and not self._headers and self._is_after_close():
            # Bytes behind the last request of a connection are of no one.
            self._end()
            return
        self._refusal = ClientError(
            400, "bad_request", f"the request is not valid HTTP/1.1: {error}"
        )

    def _is_after_close(self) -> bool:
        last = self.ready[-1] if self.ready else None
        return isinstance(last, tuple) and not last[0].keeps_alive

    def _end(self) -> None:
        self.is_over = True
        self.message_bytes = 0
        self.wants_continue = False

    def _decline_upgrade(self, rest: bytes) -> bytes:
        """Return the request anew, as one that offers no upgrade (RFC 9110, 7.8).

        llhttp takes all that follows such a head for another protocol, the body too.
        """
        head, self.head = self.head, None
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

    def _learn(self, data: bytes) -> None:
        request = self.ready[0]
        if isinstance(request, tuple):
            head, body = request
            self.known = None
            if head.keeps_alive and head.version == "1.1" and not head.expects_continue:
                self.known = RepeatedHead.learn(head, data, len(body))


def _without_upgrade(name: bytes, value: bytes) -> bytes:
    if name.lower() != b"connection":
        return value
    tokens = [token.strip() for token in value.split(b",")]
    return b", ".join(token for token in tokens if token.lower() != b"upgrade")
