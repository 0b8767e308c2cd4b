"""The body of a call, read within bounds; that of a refused call, too."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

from warmroute.adapters.kv_door import MAX_BODY_BYTES, body_too_long
from warmroute.policies.errors import ClientError

LINGER_BYTES = 64 << 20
"""Most that is read and dropped of a call that is refused."""

LINGER_S = 5.0
"""How long that may take."""


class Streamed(Protocol):
    """What a body comes with (``starlette.requests.Request``)."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        ...


class Body:
    """Read the body of one call, once.

    Args:
        request: Brings it.
    """

    __slots__ = ("_chunks",)

    def __init__(self, request: Streamed) -> None:
        self._chunks = request.stream()

    def __repr__(self) -> str:
        return "<Body>"

    async def read(self) -> bytes:
        """Return the whole body, of at most 16 MiB.

        Raises:
            ClientError: 413, it is longer; 400, its sender went away.
        """
        body = bytearray()
        try:
            async for chunk in self._chunks:
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise body_too_long()
        except _disconnect() as error:
            raise ClientError(
                400, "kv_request_invalid", "the body has no end; its sender went away"
            ) from error
        return bytes(body)

    async def drop(self) -> None:
        """Read on to the end, within bounds, and drop what comes.

        A server that answers and closes while its caller still sends has the
        connection reset, and the caller may never see the answer.
        """
        left = LINGER_BYTES
        with contextlib.suppress(_disconnect(), TimeoutError):
            async with asyncio.timeout(LINGER_S):
                async for chunk in self._chunks:
                    left -= len(chunk)
                    if left < 0:
                        return


def _disconnect() -> type[Exception]:
    """Return what the server raises when a sender has gone."""
    requests: Any = importlib.import_module("starlette.requests")
    kind: type[Exception] = requests.ClientDisconnect
    return kind
