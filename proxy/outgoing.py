"""A request as engines get it: the client's bytes under a head of ours."""

from warmroute.proxy.backend import Backend
from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.http.splice import ask_for_usage


class Outgoing:
    """Render once what every attempt shares, and the rest for each.

    Args:
        head: The client's head.
        body: The client's body, passed on as it is.
        peer: The client's address.
        scheme: http or https, as the client spoke.
        stripped: Lower-case header names that do not pass.
        prefixes: Lower-case prefixes of such names.
        asks_usage: Splice the wish for usage into the body.
    """

    __slots__ = ("_head", "_lines", "asks_usage", "body")

    def __init__(
        self,
        head: RequestHead,
        body: bytes,
        peer: bytes,
        scheme: bytes,
        stripped: frozenset[bytes],
        prefixes: tuple[bytes, ...],
        asks_usage: bool,
    ) -> None:
        self._head = head
        self.asks_usage = asks_usage
        self.body = ask_for_usage(body) if asks_usage else body
        lines = head.passing(stripped, prefixes) + head.forwarded(peer, scheme)
        if body or b"content-length" in head.fields:
            lines += b"Content-Length: %d\r\n" % len(self.body)
        self._lines = lines

    @property
    def is_bodiless(self) -> bool:
        """Whether the answer has no body, whatever its head announces."""
        return self._head.method == b"HEAD"

    def head_for(self, backend: Backend, traceparent: bytes) -> bytes:
        """Render the head for one backend; no traceparent passes the client's."""
        head = self._head
        if backend.auth_header is not None:
            credentials = b"%b: %b\r\n" % backend.auth_header
        elif head.authorization is not None:
            credentials = b"Authorization: %b\r\n" % head.authorization
        else:
            credentials = b""
        return b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b%b\r\n" % (
            head.method,
            backend.path_prefix.encode(),
            head.target,
            backend.host_header,
            credentials,
            self._lines,
            b"traceparent: %b\r\n" % traceparent if traceparent else b"",
        )
