"""One backend's address for control calls: bounded in bytes, time and trust."""

import errno
import json
import ssl
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp

from warmroute.adapters.door import DOOR
from warmroute.policies.errors import BackendUnavailable, ProtocolMismatch

MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_REASON = 300
INSTANCE_HEADER = "X-Warmroute-Instance"
"""Which process answered, where it was a warmroute and not an engine."""

_CONNECTING = (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError)


class BackendRefused(BackendUnavailable):
    """Nobody listens at the backend's address: its process is gone."""


class BackendIsSelf(BackendUnavailable):
    """The backend's address leads back to the process that asks."""


class Answer(NamedTuple):
    """Hold an HTTP answer: its status and its whole, bounded body."""

    status: int
    body: bytes


class Endpoint:
    """Ask one backend control questions over a borrowed session.

    Redirects are not followed, so a backend's key never leaves for elsewhere.

    Args:
        session: Shared client; its owner closes it.
        url: Scheme, authority and path prefix, without a trailing slash.
        headers: Sent with each call, such as the backend's Authorization.
        timeout_s: Bound of one call, connect to last byte.
        tls: Context for https, or None.
        max_bytes: Bound of one answer; 8 MiB unless given.
        door_key: Authorization of calls to the plugin's paths, if they have their own.
        instance_id: Of the process that asks; an answer with it comes from itself.
    """

    __slots__ = (
        "_door_key",
        "_headers",
        "_instance_id",
        "_max_bytes",
        "_session",
        "_timeout",
        "_tls",
        "url",
    )

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        max_bytes: int | None = None,
        door_key: str | None = None,
        instance_id: str | None = None,
    ) -> None:
        self.url = url
        self._instance_id = instance_id
        self._door_key = door_key
        self._session = session
        self._headers = headers
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._max_bytes = MAX_ANSWER_BYTES if max_bytes is None else max_bytes

    def __repr__(self) -> str:
        return f"<Endpoint {self.url}>"

    def allowing(self, max_bytes: int, timeout_s: float) -> "Endpoint":
        """Return the same for an answer that is larger, or takes longer, than most."""
        total_s = max(timeout_s, self._timeout.total or 0.0)
        tls = None if isinstance(self._tls, bool) else self._tls
        return Endpoint(
            self._session,
            self.url,
            self._headers,
            total_s,
            tls,
            max_bytes,
            self._door_key,
            self._instance_id,
        )

    async def get(self, path: str) -> Answer:
        """Fetch a path; any status is an answer."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: Mapping[str, object]) -> Answer:
        """Send a JSON body to a path; any status is an answer."""
        return await self._call("POST", path, body)

    async def get_object(self, path: str) -> dict[str, object] | None:
        """Fetch a JSON object; None if the engine has no such path.

        Raises:
            ProtocolMismatch: The answer is no JSON object, or an error.
        """
        status, body = await self.get(path)
        if status in (404, 405, 501):
            return None
        if status in (401, 403):
            raise ProtocolMismatch(
                f"{self.url}{path} answered HTTP {status}; set the backend's api_key"
            )
        if status != 200:
            raise ProtocolMismatch(f"{self.url}{path} answered HTTP {status}, not 200")
        return self.decode_object(path, body)

    def decode_object(self, path: str, body: bytes) -> dict[str, object]:
        """Decode a JSON object that *path* answered with."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProtocolMismatch(
                f"{self.url}{path} answered {body[:60]!r}, which is not JSON"
            ) from error
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise ProtocolMismatch(f"{self.url}{path} answered a {kind}, not an object")
        return value

    async def _call(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> Answer:
        try:
            async with self._session.request(
                method,
                self.url + path,
                json=body,
                headers=self._headers_for(path),
                timeout=self._timeout,
                ssl=self._tls,
                allow_redirects=False,
            ) as response:
                self._check_instance(response)
                return Answer(response.status, await self._read(path, response))
        except TimeoutError as error:
            raise BackendUnavailable(
                f"{self.url}{path} did not answer within {self._timeout.total:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._translated(path, error) from error

    def _headers_for(self, path: str) -> Mapping[str, str]:
        if self._door_key is None or not path.startswith(DOOR):
            return self._headers
        return {**self._headers, "Authorization": self._door_key}

    def _check_instance(self, response: aiohttp.ClientResponse) -> None:
        instance_id = response.headers.get(INSTANCE_HEADER)
        if instance_id is not None and instance_id == self._instance_id:
            raise BackendIsSelf(
                f"this backend is this warmroute itself ({self.url}); give the "
                "address of an engine"
            )

    async def _read(self, path: str, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_bytes:
                response.close()
                raise ProtocolMismatch(
                    f"{self.url}{path} answered more than {self._max_bytes} bytes"
                )
        return bytes(body)

    def _translated(self, path: str, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
            return BackendRefused(f"{self.url} refused the connection")
        if isinstance(error, aiohttp.ClientResponseError):
            return ProtocolMismatch(f"{self.url}{path} broke HTTP: {_reason(error)}")
        if isinstance(error, _CONNECTING):
            return BackendUnavailable(f"cannot connect to {self.url}: {_reason(error)}")
        return BackendUnavailable(f"{self.url}{path} failed: {_reason(error)}")


def _reason(error: Exception) -> str:
    """Say why in words; the repr of an error may hold the headers, key and all."""
    cause: object = error
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientResponseError):
        cause = error.message
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return " ".join(text.split())[:MAX_REASON]
