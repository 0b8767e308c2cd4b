"""The entry point ``vllm.endpoint_plugins``: ``/warmroute/kv/{verb}`` on its server."""

import importlib
import logging
import secrets
from collections.abc import Sequence
from typing import Any

from warmroute.adapters.kv_plugin.endpoint import PREFIX, DoorEndpoint, HttpRequest
from warmroute.adapters.kv_plugin.names import PLUGIN
from warmroute.adapters.vllm.plugin.tokens import ServerTokens

logger = logging.getLogger("vllm.warmroute")

PATH = f"{PREFIX}{{verb}}"


class WarmrouteEndpoint(DoorEndpoint):
    """Offer KV control on vLLM's API server (``EndpointPlugin``).

    vLLM makes one a server, and only where it is named in ``VLLM_PLUGINS``.
    """

    name = PLUGIN
    required_tasks: tuple[str, ...] | None = ("generate",)

    def __init__(self) -> None:
        super().__init__()
        self._client: Any = None

    def attach_router(self, app: Any) -> None:
        """Add the path; without a token it only says why it is shut."""
        app.add_route(PATH, self.answer, methods=["GET", "POST"])
        logger.info("warmroute: %s is %r", PATH, self._door)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Learn which engine to drive."""
        if engine_client is not None:
            self._client = engine_client
            self._drive(engine_client.engine_core)

    def _tokens(self, request: HttpRequest) -> ServerTokens:
        return ServerTokens(
            request.app.state.serving_tokenization,
            request,
            self._client.model_config.max_model_len,
        )

    async def _generate(self, tokens: Sequence[int], salt: str | None) -> None:
        """Generate one token, so that the engine loads what the prompt needs."""
        vllm: Any = importlib.import_module("vllm")
        prompt: dict[str, object] = {"prompt_token_ids": list(tokens)}
        if salt is not None:
            prompt["cache_salt"] = salt
        once = vllm.SamplingParams(max_tokens=1)
        name = f"warmroute-restore-{secrets.token_hex(8)}"
        async for _ in self._client.generate(prompt, once, name):
            pass
