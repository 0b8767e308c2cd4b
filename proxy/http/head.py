"""Request heads: what passes to the engine, what stays, what is added."""

import os
import re
from itertools import count
from typing import Final

from warmroute.adapters.door import leads_to_door
from warmroute.policies.errors import ClientError

Headers = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and what is re-authored with the body.
_HOP_BY_HOP: Final = frozenset(
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
_SINGLE: Final = frozenset({b"host", b"authorization", b"content-type"})
_OWN: Final = _HOP_BY_HOP | {
    b"host",
    b"authorization",
    b"x-request-id",
    b"x-forwarded-for",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-warmroute-explain",
}
_INTERESTING: Final = _OWN | {
    b"content-type",
    b"content-encoding",
    b"x-session-id",
    b"x-smg-routing-key",
    b"traceparent",
    b"user-agent",
}
_AUTHORITY: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE).match
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch
_ID_START: Final = os.urandom(8).hex().encode()
_id_counts = count()


class RequestHead:
    """The head of a request, checked, with the fields the proxy reads.

    Raises:
        ClientError: 400 for heads that two parsers could read differently, 403 for
            the paths of the plugin inside an engine.
    """

    __slots__ = (
        *("authorization", "content_encoding", "content_length", "content_type"),
        *("expects_continue", "explains", "fields", "has_body", "keeps_alive"),
        *("method", "passing", "path", "request_id", "session", "starts", "target"),
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
                before = fields.get(key)
                fields[key] = value if before is None else _join(key, before, value)
            if key not in _OWN:
                passing.append((key, name, value))
        self.fields = fields
        self.passing = passing
        self.target = _checked(_origin_form(target))
        self.path = self.target.partition(b"?")[0].decode("latin-1")
        _check_framing(version, fields)
        self.has_body = b"content-length" in fields or b"transfer-encoding" in fields
        self.content_length = int(fields.get(b"content-length", b"0"))
        expect = fields.get(b"expect", b"").lower()
        self.expects_continue = expect == b"100-continue" and version == "1.1"
        self.keeps_alive = _keeps_alive(version, fields)
        self.authorization = fields.get(b"authorization")
        self.content_type = fields.get(b"content-type", b"")
        self.content_encoding = fields.get(b"content-encoding", b"")
        session = fields.get(b"x-session-id") or fields.get(b"x-smg-routing-key")
        self.session = session.decode("latin-1") if session else None
        self.explains = fields.get(b"x-warmroute-explain") == b"1"
        given = fields.get(b"x-request-id", b"")
        self.request_id = given if _REQUEST_ID(given) else _new_id()
        self.starts: dict[object, bytes] = {}

    def __repr__(self) -> str:
        return f"<RequestHead {self.method.decode()} {self.path}>"

    def repeat(self) -> None:
        """Become the head of another request with the same bytes."""
        if self.fields.get(b"x-request-id") != self.request_id:
            self.request_id = _new_id()


def _new_id() -> bytes:
    # Unique and not secret, so the process draws its randomness once.
    return b"%b%016x" % (_ID_START, next(_id_counts))


def _keeps_alive(version: str, fields: dict[bytes, bytes]) -> bool:
    connection = fields.get(b"connection", b"").lower()
    if version == "1.1":
        return b"close" not in connection
    return b"keep-alive" in connection


def _join(key: bytes, first: bytes, second: bytes) -> bytes:
    if key in _SINGLE:
        raise ClientError(
            400,
            "duplicate_header",
            f"the request has more than one {key.decode()} header; send exactly one",
        )
    return b"%b, %b" % (first, second)


def _check_framing(version: str, fields: dict[bytes, bytes]) -> None:
    if version not in ("1.0", "1.1"):
        raise ClientError(
            400, "bad_request", f"HTTP/{version} is not served; send HTTP/1.1"
        )
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
    if target.startswith(b"/") or target == b"*":
        return target
    authority = _AUTHORITY(target)
    if authority is None:
        raise ClientError(
            400,
            "bad_target",
            f"request target {target[:80].decode('latin-1')!r} is not a path; "
            "send one that starts with /",
        )
    rest = target[authority.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _checked(target: bytes) -> bytes:
    """Refuse the engines' own door: the backend's key would be put in for anybody."""
    if leads_to_door(target):
        raise ClientError(
            403,
            "forbidden_path",
            "paths under /warmroute/ are not served on the data port; use "
            "/api/kv/{verb} on the admin port",
        )
    return target
