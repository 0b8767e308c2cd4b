"""The engine's HTTP application."""

from aiohttp import web

from warmroute.adapters.embedded.server.body import MAX_BODY_BYTES
from warmroute.adapters.embedded.server.chat import Chat
from warmroute.adapters.embedded.server.completions import Completions
from warmroute.adapters.embedded.server.facts import Facts
from warmroute.adapters.embedded.server.fence import fence, name_response
from warmroute.adapters.embedded.server.metrics import EngineMetrics
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.adapters.embedded.server.tokenize import Tokenize


def build_app(serving: Serving, metrics: EngineMetrics) -> web.Application:
    """Return the application over a started engine; starts nothing.

    *metrics* must be the observer of that engine. The runner of the application
    must be made with ``handler_cancellation=True``, or the requests of clients
    that left run to their end.
    """
    app = web.Application(middlewares=[fence], client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(name_response)
    metrics.watch(serving.engine.stats, serving.engine.limits.max_model_len)
    facts, tokenize = Facts(serving), Tokenize(serving)
    app.add_routes(
        [
            web.get("/health", facts.show_health),
            web.get("/version", facts.show_version),
            web.get("/metrics", metrics.show),
            web.get("/kv_event_sources", facts.show_event_sources),
            web.get("/v1/models", facts.list_models),
            web.get("/v1/models/{name:.+}", facts.show_model),
            web.post("/v1/completions", Completions(serving).complete),
            web.post("/v1/chat/completions", Chat(serving).complete),
            web.post("/tokenize", tokenize.tokenize),
            web.post("/detokenize", tokenize.detokenize),
        ]
    )
    return app
