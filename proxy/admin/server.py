"""The admin server: metrics, state, decisions, and the fleet's levers."""

import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, TypeVar

import msgspec
from aiohttp import hdrs, web
from prometheus_client.exposition import choose_encoder

from warmroute.adapters.refusal import refuse, refuse_http
from warmroute.policies.errors import ClientError, ConfigError, WarmrouteError
from warmroute.proxy.admin.dashboard import Dashboard, is_browser, wants_page
from warmroute.proxy.admin.guard import Guard
from warmroute.proxy.admin.json_answer import SERVER_NAME, json_answer
from warmroute.proxy.admin.query import check_query, read_number
from warmroute.proxy.admin.state import AdminState
from warmroute.proxy.admin.surrogates import lone_surrogate
from warmroute.proxy.failures import client_left

MAX_BODY_BYTES = 64 * 1024 * 1024

_MAX_DECISIONS = 1000
_MAX_DEPTH = 64

_T = TypeVar("_T")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class ExplainRequest(msgspec.Struct):
    """The body of ``POST /api/explain``; its own body stays as written."""

    path: str
    headers: dict[str, str] = {}
    body: msgspec.Raw = msgspec.Raw(b"null")


def make_admin(state: AdminState) -> web.Application:
    """Return the admin application over *state*; starts nothing."""
    guard = Guard(state.host, state.token)
    dashboard = Dashboard(state)
    admin = Admin(state, dashboard)
    app = web.Application(
        middlewares=[_fence(guard, dashboard)], client_max_size=MAX_BODY_BYTES + 1
    )
    app.on_response_prepare.append(_sign)
    dashboard.add_to(app)
    app.add_routes(
        [
            web.get("/", admin.show_page),
            web.get("/api", admin.show_links),
            web.get("/livez", admin.show_alive),
            web.get("/readyz", admin.show_ready),
            web.get("/metrics", admin.show_metrics),
            web.get("/api/state", admin.show_state),
            web.get("/api/decisions", admin.list_decisions),
            web.get("/api/decisions/{request_id}", admin.show_decision),
            web.post("/api/explain", admin.explain),
            web.get("/api/view", admin.show_view),
            web.get("/api/backends", admin.list_backends),
            web.post("/api/backends", admin.add_backend),
            web.post("/api/backends/{name}/drain", admin.drain_backend),
            web.delete("/api/backends/{name}", admin.remove_backend),
            web.post("/api/reload", admin.reload),
            *state.routes,
        ]
    )
    return app


class Admin:
    """The handlers, one a route."""

    __slots__ = ("_dashboard", "_state")

    def __init__(self, state: AdminState, dashboard: Dashboard) -> None:
        self._state = state
        self._dashboard = dashboard

    async def show_page(self, request: web.Request) -> web.Response:
        """Show the dashboard; list what there is to those who ask for JSON."""
        if wants_page(request):
            return self._dashboard.page(request)
        return await self.show_links(request)

    async def show_links(self, request: web.Request) -> web.Response:
        """List what there is."""
        links = {one.canonical for one in request.app.router.resources()}
        return json_answer(
            {
                "name": "warmroute",
                "version": self._state.version,
                "links": sorted(links),
            }
        )

    async def show_alive(self, request: web.Request) -> web.Response:
        """Answer as long as the loop runs; never depends on backends."""
        return json_answer({"alive": True})

    async def show_ready(self, request: web.Request) -> web.Response:
        """Answer 200 while requests can be served, else 503."""
        is_ready = self._state.is_ready()
        return json_answer({"ready": is_ready}, 200 if is_ready else 503)

    async def show_metrics(self, request: web.Request) -> web.Response:
        """Expose the metrics, in OpenMetrics when the scraper asks for it."""
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        body = encode(self._state.registry)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def show_state(self, request: web.Request) -> web.Response:
        """Show backends, index and token totals."""
        return json_answer(self._state.overview())

    async def list_decisions(self, request: web.Request) -> web.Response:
        """List the newest decisions first, filtered by backend and model."""
        check_query(request, "limit", "backend", "model")
        limit = read_number(request, "limit", 100, _MAX_DECISIONS)
        backend, model = request.query.get("backend"), request.query.get("model")
        found = (
            decision.record()
            for decision in self._state.ledger.newest()
            if backend in (None, decision.chosen) and model in (None, decision.model)
        )
        return json_answer({"decisions": list(islice(found, limit))})

    async def show_decision(self, request: web.Request) -> web.Response:
        """Show the decision of one request id."""
        request_id = request.match_info["request_id"]
        decision = self._state.ledger.find(request_id)
        if decision is None:
            raise ClientError(
                404,
                "decision_not_found",
                f"no decision of request {request_id!r} is kept "
                "(it is older than the ring, or was never routed; ids over 128 "
                "characters or with others than A-Za-z0-9._- were replaced, and the "
                "x-request-id of the answer is the one in force); "
                "raise decisions.records to keep more",
            )
        return json_answer(decision.record())

    async def explain(self, request: web.Request) -> web.Response:
        """Route a request without sending it."""
        asked = _decode(await request.read(), ExplainRequest)
        body = bytes(asked.body)
        if body.startswith(b'"'):
            body = msgspec.json.decode(body, type=str).encode()
        headers = {name.lower(): value for name, value in asked.headers.items()}
        return json_answer(await self._state.explain(asked.path, headers, body))

    async def show_view(self, request: web.Request) -> web.Response:
        """Show the prefixes that one backend is believed to hold."""
        check_query(request, "backend", "depth")
        name = request.query.get("backend", "")
        self._require(name)
        depth = read_number(request, "depth", 4, _MAX_DEPTH)
        return json_answer(self._state.tree(name, depth))

    async def list_backends(self, request: web.Request) -> web.Response:
        """List the backends, as in the state."""
        return json_answer({"backends": self._state.backends()})

    async def add_backend(self, request: web.Request) -> web.Response:
        """Add a backend until the next reload or restart."""
        entry = _decode(await request.read(), dict[str, Any])
        try:
            name = self._state.add_backend(entry)
        except ConfigError as error:
            raise ClientError(400, "backend_invalid", str(error)) from error
        logger.info("backend_added", extra={"backend": name, "by": "admin"})
        return json_answer({"name": name}, 201)

    async def drain_backend(self, request: web.Request) -> web.Response:
        """Give a backend no new requests; those in flight go on."""
        name = request.match_info["name"]
        self._require(name)
        self._state.fleet.drain(name)
        logger.info("backend_drained", extra={"backend": name, "by": "admin"})
        return json_answer(
            {"name": name, "state": self._state.fleet.backends[name].state}
        )

    async def remove_backend(self, request: web.Request) -> web.Response:
        """Forget a backend."""
        name = request.match_info["name"]
        self._require(name)
        await self._state.fleet.remove(name)
        logger.info("backend_removed", extra={"backend": name, "by": "admin"})
        return json_answer({"name": name, "removed": True})

    async def reload(self, request: web.Request) -> web.Response:
        """Load the configuration again; a wrong one changes nothing."""
        try:
            await self._state.reload()
        except ConfigError as error:
            raise ClientError(400, "config_invalid", str(error)) from error
        return json_answer({"reloaded": True})

    def _require(self, name: str) -> None:
        backends = self._state.fleet.backends
        if name not in backends:
            known = ", ".join(sorted(backends)) or "none"
            raise ClientError(
                404, "backend_not_found", f"unknown backend {name!r} (known: {known})"
            )


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    """Name us, and not what we are made of with its versions."""
    response.headers[hdrs.SERVER] = SERVER_NAME


def _fence(guard: Guard, dashboard: Dashboard) -> Any:
    """Return the middleware that guards, and turns exceptions into answers."""

    @web.middleware
    async def fence(request: web.Request, handler: _Handler) -> web.StreamResponse:
        headers = request.headers
        try:
            guard.check(
                request.method,
                request.path,
                headers.get(hdrs.HOST, ""),
                headers.get(hdrs.AUTHORIZATION, ""),
                request.content_type if hdrs.CONTENT_TYPE in headers else "",
            )
            _check_encoding(headers.get(hdrs.CONTENT_ENCODING, ""))
            return await handler(request)
        except ClientError as error:
            if error.status == 401 and is_browser(request):
                return dashboard.page(request, 401)
            return refuse(error)
        except web.HTTPException as error:
            return refuse_http(error, request, MAX_BODY_BYTES)
        except WarmrouteError as error:
            return refuse(ClientError(502, "backend_failed", str(error)))
        except Exception as error:
            if request.transport is None and isinstance(error, ConnectionError):
                return refuse(client_left())  # which nobody reads
            logger.exception("admin_request_failed", extra={"path": request.path})
            return refuse(
                ClientError(
                    500, "internal_error", "the admin server failed; see the log"
                )
            )

    return fence


def _check_encoding(encoding: str) -> None:
    if encoding.lower() not in ("", "identity"):
        raise ClientError(
            415,
            "body_packed",
            f"content encoding {encoding[:64]!r} of a body (allowed: none; send it as "
            "it is)",
        )


def _decode(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fault = lone_surrogate(body) or str(error)
        raise ClientError(400, "body_invalid", f"body: {fault}") from error
    except RecursionError:
        raise ClientError(
            400, "body_invalid", "body: nested too deep; send a flatter one"
        ) from None
