"""The admin port of a running proxy, asked by a command."""

import http.client
import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from warmroute.policies.errors import BackendUnavailable, ConfigError, WarmrouteError
from warmroute.proxy.console.admin_url import admin_url

TOKEN_VARIABLE: Final = "WARMROUTE_ADMIN_TOKEN"  # noqa: S105 - a name, no secret

_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 64 << 20
_MAX_MESSAGE: Final = 1000

_T = TypeVar("_T")


class NoSuchDecision(WarmrouteError):
    """The proxy keeps no decision of that request."""


class AdminClient:
    """Ask one admin port; a connection for each question.

    Args:
        url: host:port, or such as ``http://127.0.0.1:9090``; a path of the port
            itself, such as ``/api/state``, is passed over. None: see `admin_url`.
        environ: Holds the token, as for the proxy itself.
        timeout_s: Bound of a question, between two bytes.
        max_bytes: Bound of an answer.

    Raises:
        ConfigError: The URL is none.
    """

    __slots__ = (
        *("_headers", "_host", "_is_tls", "_max_bytes", "_path", "_port"),
        *("_timeout_s", "url"),
    )

    def __init__(
        self,
        url: str | None,
        environ: Mapping[str, str],
        timeout_s: float = _TIMEOUT_S,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self.url = admin_url(url, environ)
        parts = urlsplit(self.url)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._port = parts.port
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        token = environ.get(TOKEN_VARIABLE, "").strip()
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(
                f"{TOKEN_VARIABLE}: has characters that no header can carry"
            )
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def __repr__(self) -> str:
        return f"<AdminClient {self.url}>"

    def get(self, path: str) -> bytes:
        """Return the JSON at *path*, not yet decoded.

        Raises:
            BackendUnavailable: Nobody listens there, or not in time.
            NoSuchDecision: The path is that of a decision which is not kept.
            WarmrouteError: The admin port refused, with its reason.
        """
        return self._call("GET", path, None)

    def post(self, path: str, content: object) -> bytes:
        """Send *content* as JSON; returns the JSON of the answer, raises as `get`."""
        return self._call("POST", path, msgspec.json.encode(content))

    def _call(self, method: str, path: str, content: bytes | None) -> bytes:
        try:
            status, body = self._ask(method, path, content)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or repr(error)
            raise BackendUnavailable(
                f"no answer from the admin port at {self.url}: {_cut(reason)}; start "
                "`warmroute serve`, or name its admin address with --admin URL "
                "(it stands in the proxy's log as admin=...)"
            ) from error
        if status == 200:
            return body
        raise self._refusal(status, body)

    def read(self, path: str, kind: type[_T]) -> _T:
        """Return the JSON at *path* as *kind*; raises as `get` does."""
        return self.decode(self.get(path), kind)

    def decode(self, body: bytes, kind: type[_T]) -> _T:
        """Return *body* as *kind*.

        Raises:
            WarmrouteError: It is not what this version knows.
        """
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WarmrouteError(
                f"the answer of {self.url} is not that of a warmroute of this "
                f"version: {error}; check --admin"
            ) from error

    def _ask(self, method: str, path: str, content: bytes | None) -> tuple[int, bytes]:
        connection: http.client.HTTPConnection
        if self._is_tls:
            connection = http.client.HTTPSConnection(
                self._host,
                self._port,
                timeout=self._timeout_s,
                context=ssl.create_default_context(),
            )
        else:
            connection = http.client.HTTPConnection(
                self._host, self._port, timeout=self._timeout_s
            )
        try:
            headers = dict(self._headers)
            if content is not None:
                headers["content-type"] = "application/json"
            connection.request(method, self._path + path, content, headers)
            answer = connection.getresponse()
            body = answer.read(self._max_bytes + 1)
        finally:
            connection.close()
        if len(body) > self._max_bytes:
            most = self._max_bytes
            raise http.client.HTTPException(f"the answer is over {most} bytes")
        return answer.status, body

    def _refusal(self, status: int, body: bytes) -> WarmrouteError:
        try:
            told: Any = msgspec.json.decode(body)["error"]
            code, message = str(told["code"]), str(told["message"])
        except (ValueError, LookupError, TypeError):
            code, message = "", "it is no admin port of warmroute; check --admin"
        if code == "admin_token_wrong":
            message = (
                f"{TOKEN_VARIABLE} is not its token; set it to that of the proxy"
                if self._headers
                else f"it wants its token; set {TOKEN_VARIABLE}"
            )
        if code == "path_not_found":
            message += (
                "; check that --admin is the admin port, not the data port, of a "
                "warmroute of this version"
            )
        text = f"{self.url} answered {status}: {_cut(message)}"
        return (NoSuchDecision if code == "decision_not_found" else WarmrouteError)(
            text
        )


def _cut(text: str) -> str:
    printable = "".join(one if one.isprintable() else "?" for one in text)
    return printable[:_MAX_MESSAGE]
