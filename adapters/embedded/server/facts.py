"""The paths on which the engine tells about itself."""

import msgspec
from aiohttp import web

from warmroute.adapters.embedded.server.serving import Serving

OWNER = "warmroute"


class Facts:
    """The handlers of health, version, models and event sources."""

    __slots__ = ("_serving",)

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def show_health(self, request: web.Request) -> web.Response:
        """Answer 200 while the engine computes, 503 once it is dead."""
        self._serving.check_alive()
        return web.Response()

    async def show_version(self, request: web.Request) -> web.Response:
        """Tell the release of warmroute."""
        return json_answer({"version": self._serving.version})

    async def list_models(self, request: web.Request) -> web.Response:
        """List the names of the one model."""
        cards = [self._card(name) for name in self._serving.names]
        return json_answer({"object": "list", "data": cards})

    async def show_model(self, request: web.Request) -> web.Response:
        """Show one name of the model."""
        name = request.match_info["name"]
        self._serving.check_model(name)
        return json_answer(self._card(name))

    async def show_event_sources(self, request: web.Request) -> web.Response:
        """Tell where KV events are published, as vLLM does."""
        return json_answer(self._serving.event_sources)

    def _card(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._serving.started_s,
            "owned_by": OWNER,
            "root": self._serving.name,
            "parent": None,
            "max_model_len": self._serving.engine.limits.max_model_len,
        }


def json_answer(value: object) -> web.Response:
    """Return *value* as a JSON answer."""
    return web.Response(
        body=msgspec.json.encode(value), content_type="application/json"
    )
