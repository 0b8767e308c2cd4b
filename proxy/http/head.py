"""Request heads: what passes to the engine, what stays, what is added."""

import random
import re

from warmroute.policies.errors import ClientError

Headers = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and the two that are re-authored with the body.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        b"expect",
        b"http2-settings",
    }
)
# Read by the proxy, once each; a second one would be ambiguous.
_SINGLE = frozenset({b"host", b"authorization", b"content-type"})
_OWN = _HOP_BY_HOP | {
    b"host",
    b"authorization",
    b"x-request-id",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-warmroute-explain",
}
_INTERESTING = _OWN | {
    b"content-type",
    b"content-encoding",
    b"x-session-id",
    b"x-smg-routing-key",
    b"traceparent",
    b"user-agent",
}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch


class RequestHead:
    """The head of one request, checked, with the fields the proxy reads.

    Raises:
        ClientError: 400 for heads that two parsers could read differently.
    """

    __slots__ = (
        "_pass",
        "content_length",
        "expects_continue",
        "explain",
        "fields",
        "has_chunked_body",
        "method",
        "path",
        "request_id",
        "target",
        "version",
    )

    def __init__(
        self, method: bytes, target: bytes, version: str, headers: Headers
    ) -> None:
        self.method = method
        self.version = version
        fields: dict[bytes, bytes] = {}
        passing: list[tuple[bytes, bytes, bytes]] = []
        for name, value in headers:
            key = name.lower()
            if key in _INTERESTING:
                fields[key] = (
                    _combine(key, fields[key], value) if key in fields else value
                )
            if key not in _OWN:
                passing.append((key, name, value))
        self.fields = fields
        self._pass = passing
        self.target = _origin_form(target)
        self.path = self.target.partition(b"?")[0].decode("latin-1")
        _check_framing(version, fields)
        self.has_chunked_body = b"transfer-encoding" in fields
        self.content_length = int(fields.get(b"content-length", b"0"))
        self.expects_continue = (
            fields.get(b"expect", b"").lower() == b"100-continue" and version == "1.1"
        )
        given = fields.get(b"x-request-id", b"")
        self.request_id = (
            given if _REQUEST_ID(given) else b"%032x" % random.getrandbits(128)
        )
        self.explain = fields.get(b"x-warmroute-explain") == b"1"

    @property
    def authorization(self) -> bytes | None:
        """Return the client's own credentials, for backends without a key."""
        return self.fields.get(b"authorization")

    @property
    def session(self) -> str | None:
        """Return the session that the client names in a header."""
        fields = self.fields
        key = fields.get(b"x-session-id") or fields.get(b"x-smg-routing-key")
        return key.decode("latin-1") if key else None

    def passing(self, stripped: frozenset[bytes], prefixes: tuple[bytes, ...]) -> bytes:
        """Render the header lines that pass to the engine as received.

        Args:
            stripped: Lower-case names that clients may not send to engines.
            prefixes: Lower-case name prefixes with the same rule.
        """
        named = self.fields.get(b"connection")
        if named is not None:
            stripped = stripped | {
                token.strip().lower() for token in named.split(b",") if token.strip()
            }
        return b"".join(
            [
                b"%b: %b\r\n" % (name, value)
                for key, name, value in self._pass
                if key not in stripped and not key.startswith(prefixes)
            ]
        )

    def forwarded(self, peer: bytes, scheme: bytes) -> bytes:
        """Render X-Forwarded-* and X-Request-Id; *peer* is the client's address."""
        fields = self.fields
        before = fields.get(b"x-forwarded-for")
        return (
            b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: %b\r\n"
            b"X-Forwarded-Host: %b\r\nX-Request-Id: %b\r\n"
        ) % (
            b"%b, %b" % (before, peer) if before else peer,
            fields.get(b"x-forwarded-proto", scheme),
            fields.get(b"x-forwarded-host", fields.get(b"host", b"")),
            self.request_id,
        )

    def keeps_alive(self) -> bool:
        """Tell whether the client expects its connection to stay open."""
        connection = self.fields.get(b"connection", b"").lower()
        if self.version == "1.1":
            return b"close" not in connection
        return b"keep-alive" in connection


def _combine(key: bytes, first: bytes, second: bytes) -> bytes:
    if key in _SINGLE:
        name = key.decode()
        raise ClientError(
            400,
            "duplicate_header",
            f"the request has more than one {name} header; send exactly one",
        )
    return b"%b, %b" % (first, second)


def _check_framing(version: str, fields: dict[bytes, bytes]) -> None:
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (version != "1.1" or coding.lower() != b"chunked"):
        raise ClientError(
            400,
            "bad_framing",
            f"transfer-encoding {coding.decode('latin-1')!r} in HTTP/{version} is not "
            "supported; send a content-length, or chunked alone in HTTP/1.1",
        )
    if version == "1.1" and b"host" not in fields:
        raise ClientError(
            400, "missing_host", "an HTTP/1.1 request needs exactly one host header"
        )


def _origin_form(target: bytes) -> bytes:
    """Reduce an absolute-form target to path and query; the host is ours anyway."""
    if target.startswith(b"/"):
        return target
    if target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise ClientError(
            400,
            "bad_target",
            f"request target {target[:80].decode('latin-1')!r} is not a path; "
            "send one that starts with /",
        )
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"
