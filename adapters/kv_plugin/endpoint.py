"""``/warmroute/kv/{verb}`` on the server of an engine with a plugin.

The same paths, bodies and answers that any engine offers to warmroute; see
`warmroute.adapters.kv_control`.
"""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from warmroute.adapters.error_shape import describe_error
from warmroute.adapters.kv_control import (
    VERBS,
    Capabilities,
    decode_request,
    perform,
    shape_of,
)
from warmroute.adapters.kv_plugin.body import Body
from warmroute.adapters.kv_plugin.calls import CoreCalls, EngineCalls
from warmroute.adapters.kv_plugin.control import PluginKVControl
from warmroute.adapters.kv_plugin.door import Door
from warmroute.adapters.kv_plugin.timer import ExpiryTimer
from warmroute.adapters.kv_plugin.tokens import PromptTokens
from warmroute.policies.errors import ClientError

logger = logging.getLogger(__name__)

PREFIX = "/warmroute/kv/"


class HttpRequest(Protocol):
    """A request of an engine's server (``starlette.requests.Request``)."""

    method: str
    headers: Mapping[str, str]
    path_params: Mapping[str, str]
    app: Any

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        ...


class DoorEndpoint(ABC):
    """Answer calls of KV control; a subclass knows the server of one engine."""

    def __init__(self) -> None:
        self._door = Door.of_environment()
        self._calls: CoreCalls | None = None
        self._timer: ExpiryTimer | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._door!r}>"

    async def answer(self, request: HttpRequest) -> Any:
        """Answer one call."""
        body = Body(request)
        try:
            answer = msgspec.json.encode(await self._answer(request, body))
            return _response(answer, 200, {})
        except ClientError as error:
            await body.drop()
            return refuse(error)
        except Exception:
            logger.exception("warmroute: a call of KV control failed")
            return refuse(ClientError(500, "kv_failed", "the plugin failed; see log"))

    async def _answer(self, request: HttpRequest, body: Body) -> msgspec.Struct:
        verb = request.path_params["verb"]
        if verb == "capabilities" and self._door.shut is not None:
            return Capabilities(verbs=dict.fromkeys(VERBS, self._door.shut))
        self._door.check(
            request.method,
            request.headers.get("authorization", ""),
            request.headers.get("content-type", ""),
        )
        if request.method != "POST" and not shape_of(verb).reads:
            raise ClientError(
                405,
                "kv_verb_not_readable",
                f"{verb} changes the cache (allowed: POST)",
            )
        asked = b"" if request.method != "POST" else await body.read()
        control = self._control(request)
        return await perform(control, verb, decode_request(verb, asked))

    def _drive(self, engines: EngineCalls) -> None:
        """Learn which engine to drive."""
        self._calls = CoreCalls(engines)
        self._timer = ExpiryTimer(self._calls)

    def _control(self, request: HttpRequest) -> PluginKVControl:
        if self._calls is None or self._timer is None:
            raise ClientError(
                501,
                "kv_verb_unsupported",
                "unsupported: no engine is behind this server",
            )
        tokens = self._tokens(request)
        return PluginKVControl(
            self._calls, self._timer, tokens.tokenize, self._generate
        )

    @abstractmethod
    def _tokens(self, request: HttpRequest) -> PromptTokens:
        """Return what tokenizes as the server does."""

    @abstractmethod
    async def _generate(self, tokens: Sequence[int], salt: str | None) -> None:
        """Have the engine load what a prompt needs."""


def refuse(error: ClientError) -> Any:
    """Return the answer that tells *error*, in OpenAI's shape."""
    content = describe_error(error)
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return _response(msgspec.json.encode(content), error.status, headers)


def _response(body: bytes, status: int, headers: dict[str, str]) -> Any:
    kind = importlib.import_module("starlette.responses").Response
    return kind(body, status, headers, "application/json")
