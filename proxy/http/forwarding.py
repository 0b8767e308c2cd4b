"""What passes from a client's head to an engine, and what the proxy adds."""

from typing import Final

from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.http.head import RequestHead

_TRACEPARENT: Final = frozenset({b"traceparent"})
_RANK: Final = frozenset({b"x-data-parallel-rank"})


class Forwarding:
    """Render heads for engines; one for a configuration.

    Args:
        strip: Names of headers that clients may not send on; ``x-*`` for a prefix.
        scheme: http or https, as clients speak to the data port.
    """

    __slots__ = ("_names", "_prefixes", "_scheme")

    def __init__(self, strip: list[str], scheme: bytes) -> None:
        names = [pattern.lower().encode() for pattern in strip]
        self._names = frozenset(name for name in names if not name.endswith(b"*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith(b"*"))
        self._scheme = scheme

    def head_for(
        self,
        head: RequestHead,
        backend: Backend,
        peer: bytes,
        length: int,
        traceparent: bytes | None,
        rank: int | None = None,
    ) -> bytes:
        """Render the head of a request to *backend*.

        Args:
            head: The client's head.
            backend: Where the request goes.
            peer: The client's address.
            length: Bytes of the body.
            traceparent: Goes in place of the client's, where given.
            rank: The data-parallel rank that was chosen; in place of the client's.
        """
        # A client that sent none has nothing to replace: one start serves all.
        is_replaced = traceparent is not None and b"traceparent" in head.fields
        key = (self, backend, is_replaced, rank)
        start = head.starts.get(key)
        if start is None:
            start = head.starts[key] = self._start(
                head, backend, peer, is_replaced, rank
            )
        if traceparent is not None:
            start = b"%btraceparent: %b\r\n" % (start, traceparent)
        if not length and not head.has_body:
            return b"%bX-Request-Id: %b\r\n\r\n" % (start, head.request_id)
        return b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (
            start,
            head.request_id,
            length,
        )

    def _start(
        self,
        head: RequestHead,
        backend: Backend,
        peer: bytes,
        is_replaced: bool,
        rank: int | None,
    ) -> bytes:
        fields = head.fields
        before = fields.get(b"x-forwarded-for")
        host = fields.get(b"host", b"")
        credentials = b""
        if backend.auth_header is not None:
            credentials = b"%b: %b\r\n" % backend.auth_header
        elif head.authorization is not None:
            credentials = b"Authorization: %b\r\n" % head.authorization
        return (
            b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b"
            b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n"
        ) % (
            head.method,
            backend.path_prefix.encode(),
            head.target,
            backend.host_header,
            credentials,
            self._passing(head, is_replaced, rank),
            b"%b, %b" % (before, peer) if before else peer,
            fields.get(b"x-forwarded-proto", self._scheme),
            fields.get(b"x-forwarded-host", host),
        )

    def _passing(self, head: RequestHead, is_replaced: bool, rank: int | None) -> bytes:
        names, ours = self._names, b""
        if is_replaced:
            names = names | _TRACEPARENT
        if rank is not None:
            names = names | _RANK
            ours = b"X-Data-Parallel-Rank: %d\r\n" % rank
        named = head.fields.get(b"connection", b"")
        names = names | {token.strip().lower() for token in named.split(b",")}
        return ours + b"".join(
            b"%b: %b\r\n" % (name, value)
            for key, name, value in head.passing
            if key not in names and not key.startswith(self._prefixes)
        )
