"""KV control of an engine that may run without a door of ours."""

from dataclasses import dataclass

from msgspec import ValidationError
from msgspec import json as msgspec_json

from warmroute.adapters.endpoint import Endpoint
from warmroute.adapters.kv_client import NO_DOOR, KVControlClient
from warmroute.adapters.kv_control import Capabilities, Flushed, unsupported
from warmroute.adapters.kv_requests import Request
from warmroute.policies.errors import ClientError, ProtocolMismatch

_ABSENT = (404, 405, 501)


@dataclass(frozen=True, slots=True)
class StockFlush:
    """Say how an engine flushes its cache without any plugin.

    Args:
        path: Takes a POST.
        remedy: How to have the path, where the engine may lack it; a GET of it then
            tells whether it is there (405) and changes nothing. None: it always is.
    """

    path: str
    remedy: str | None = None


class StockKVControl(KVControlClient):
    """Drive a cache through the door, and flush it where there is none.

    Args:
        endpoint: Where to ask.
        flush: How the engine flushes by itself.
        need: What the other verbs need, in words.
    """

    __slots__ = ("_flush", "_need")

    def __init__(self, endpoint: Endpoint, flush: StockFlush, need: str) -> None:
        super().__init__(endpoint)
        self._flush = flush
        self._need = need

    async def capabilities(self, request: Request) -> Capabilities:
        """Say what works; without the door, how to get it."""
        told = await super().capabilities(request)
        if set(told.verbs.values()) != {NO_DOOR}:
            return told
        verbs: dict[str, bool | str] = dict.fromkeys(told.verbs, self._need)
        verbs["flush"] = await self._can_flush()
        return Capabilities(verbs=verbs)

    async def flush(self, request: Request) -> Flushed:
        """Drop everything that nobody uses; by the engine's own path if need be."""
        try:
            return await super().flush(request)
        except ClientError as error:
            if error.status != 501:
                raise
        return await self._flush_stock()

    async def _can_flush(self) -> bool | str:
        if self._flush.remedy is None:
            return True
        answer = await self._endpoint.get(self._flush.path)
        return answer.status == 405 or self._flush.remedy

    async def _flush_stock(self) -> Flushed:
        path = self._flush.path
        answer = await self._endpoint.post(path, {})
        if answer.status in _ABSENT:
            raise unsupported("flush", self._flush.remedy or NO_DOOR)
        if answer.status in (401, 403):
            raise ClientError(
                answer.status,
                "engine_token_wrong",
                f"{self._endpoint.url}{path} wants another key; set the backend's "
                f"api_key",
            )
        if answer.status == 400:  # it is busy, and has dropped nothing
            return Flushed(flushed=False)
        if answer.status != 200:
            raise ProtocolMismatch(
                f"{self._endpoint.url}{path} answered HTTP {answer.status}, not 200"
            )
        return Flushed(flushed=_is_success(answer.body))


def _is_success(body: bytes) -> bool:
    """Read vLLM's ``{"success": ...}``; releases without it say 200 and no more."""
    try:
        told = msgspec_json.decode(body, type=dict[str, object])
    except (ValidationError, ValueError, RecursionError):
        return True
    return told.get("success") is not False
