"""``/warmroute/kv/{verb}`` on SGLang's own server.

The same paths, bodies and answers that any engine offers to warmroute; see
`warmroute.adapters.kv_control`.
"""

import importlib
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, cast

from warmroute.adapters.kv_control import unsupported
from warmroute.adapters.kv_plugin.calls import EngineCalls
from warmroute.adapters.kv_plugin.endpoint import PREFIX, DoorEndpoint, HttpRequest
from warmroute.adapters.kv_plugin.verbs import DeafControl
from warmroute.adapters.sglang.plugin.names import NO_RESTORE
from warmroute.adapters.sglang.plugin.tokens import ServerTokens

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class DeafLink:
    """Say of every call why this engine cannot be driven (``EngineCalls``).

    Args:
        reason: Why.
    """

    __slots__ = ("_control",)

    def __init__(self, reason: str) -> None:
        self._control = DeafControl(f"unsupported: {reason}")

    def __repr__(self) -> str:
        return f"<DeafLink {self._control!r}>"

    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        """Refuse."""
        ticket, verb, arguments = cast(tuple[int, str, dict[str, object]], args)
        return [self._control.call(ticket, verb, arguments)]


class SGLangEndpoint(DoorEndpoint):
    """Answer calls of KV control about the scheduler behind one server.

    Args:
        link: Reaches the scheduler.
    """

    def __init__(self, link: EngineCalls) -> None:
        super().__init__()
        self._drive(link)

    def _tokens(self, request: HttpRequest) -> ServerTokens:
        server: Any = importlib.import_module("sglang.srt.entrypoints.http_server")
        longest = server._global_state.tokenizer_manager.model_config.context_len
        return ServerTokens(request.app.state.openai_serving_tokenize, longest)

    async def _generate(self, tokens: Sequence[int], salt: str | None) -> None:
        raise unsupported("restore", NO_RESTORE)


class DoorApp:
    """Answer `PREFIX` in front of an application, and pass on all else.

    It stands before SGLang's own check of keys, because the door has one of its own.

    Args:
        inner: The application.
        endpoint: Answers what is for the plugin.
    """

    __slots__ = ("_endpoint", "_inner")

    def __init__(self, inner: Application, endpoint: DoorEndpoint) -> None:
        self._inner = inner
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"<DoorApp {self._endpoint!r}>"

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Take one connection of ASGI."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(PREFIX):
            await self._inner(scope, receive, send)
            return
        scope["path_params"] = {"verb": path.removeprefix(PREFIX)}
        requests: Any = importlib.import_module("starlette.requests")
        response = await self._endpoint.answer(requests.Request(scope, receive))
        await response(scope, receive, send)
