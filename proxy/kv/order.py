"""What the admin port is asked to do to the caches: one body, taken apart."""

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from warmroute.adapters.kv_control import decode_request, shape_of
from warmroute.adapters.kv_requests import BlocksRequest, Request
from warmroute.policies.errors import ClientError

_OWN = ("backend", "dry_run", "prefix", "session")
_OF_PROMPTS = frozenset({"add_generation_prompt", "cache_salt", "skip_blocks", "tools"})
_HASH = re.compile("[0-9a-fA-F]{16}")

_T = TypeVar("_T")
_Fields = dict[str, msgspec.Raw]


class Order:
    """One verb with its request, for one backend or all.

    Attributes:
        verb: What to do.
        backend: Where; None is everywhere.
        is_rehearsal: Only say what would happen.
        prefix: Hash of the last block of a prefix, as ``/api/view`` shows it.
        session: Key of a session, whose newest prompt is meant.
    """

    __slots__ = (
        *("_fields", "_request", "backend", "is_rehearsal", "prefix", "session"),
        "verb",
    )

    def __init__(self, verb: str, body: bytes) -> None:
        """Read a body.

        Raises:
            ClientError: 404 or 400, with the field and what is allowed.
        """
        shape = shape_of(verb)
        self.verb = verb
        fields = _decode(verb, body)
        own = {name: fields.pop(name) for name in _OWN if name in fields}
        self.backend = _read(verb, own, "backend", str)
        self.is_rehearsal = _read(verb, own, "dry_run", bool) or False
        self.session = _read(verb, own, "session", str)
        self.prefix = _hash(verb, _read(verb, own, "prefix", str))
        self._fields = fields
        if issubclass(shape.request, BlocksRequest):
            self._check_ways(shape.request.ways)
        elif self.names_prefix:
            raise _invalid(verb, "prefix and session name blocks; it takes none")
        self._request = self._read_request([0] if self.names_prefix else None)

    @property
    def names_prefix(self) -> bool:
        """Whether the blocks are those of a prefix or session."""
        return self.prefix is not None or self.session is not None

    def __repr__(self) -> str:
        return f"<Order {self.verb} of {self.backend or 'all'}>"

    def _check_ways(self, allowed: tuple[str, ...]) -> None:
        named = [self._fields.get(way) for way in allowed]
        ways = sum(raw is not None and bytes(raw) != b"null" for raw in named)
        ways += (self.prefix is not None) + (self.session is not None)
        if ways != 1:
            raise _invalid(
                self.verb,
                "blocks must be named in exactly one way "
                f"(allowed: {', '.join(allowed)}, prefix, session)",
            )
        if not self.names_prefix:
            return
        wrong = sorted(_OF_PROMPTS.intersection(self._fields))
        if wrong:
            raise _invalid(
                self.verb,
                "prefix and session name their blocks fully; leave out "
                f"{' and '.join(wrong)} (allowed: with token_ids, prompt or messages)",
            )

    def request(self, hashes: list[int] | None = None) -> Request:
        """Return the request of the verb; *hashes* are what prefix or session meant.

        Raises:
            ClientError: 400, with the field and what is allowed.
        """
        return self._request if hashes is None else self._read_request(hashes)

    def _read_request(self, hashes: list[int] | None) -> Request:
        fields: Mapping[str, object] = self._fields
        if hashes is not None:
            fields = {**self._fields, "hashes": hashes}
        return decode_request(self.verb, msgspec.json.encode(fields))


def _decode(verb: str, body: bytes) -> _Fields:
    try:
        return msgspec.json.decode(body or b"{}", type=_Fields)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(verb, f"the body is no JSON object: {error}") from error


def _read(verb: str, fields: _Fields, name: str, kind: type[_T]) -> _T | None:
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _invalid(verb, f"{name}: {error}") from error


def _hash(verb: str, text: str | None) -> int | None:
    if text is None:
        return None
    if _HASH.fullmatch(text) is None:
        raise _invalid(
            verb,
            f"prefix {text[:64]!r} (allowed: 16 hexadecimal digits, as /api/view "
            "shows them)",
        )
    return int(text, 16)


def _invalid(verb: str, message: str) -> ClientError:
    return ClientError(400, "kv_request_invalid", f"kv {verb}: {message}")
