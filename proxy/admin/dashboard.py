"""The routes of the dashboard: its page, its files, and its live updates."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import hdrs, web

from warmroute.policies.kv.trunks import MAX_NODES
from warmroute.proxy.admin.json_answer import json_answer
from warmroute.proxy.admin.query import check_query, read_number
from warmroute.proxy.admin.state import AdminState
from warmroute.proxy.dashboard.assets import HEADERS, PAGE, Asset, read_assets
from warmroute.proxy.dashboard.pulse import Pulse

_WRITE_S: Final = 10.0
_DEFAULT_NODES: Final = 240


class Dashboard:
    """Serve the page and its stream.

    Args:
        state: What is shown.
    """

    __slots__ = ("_assets", "_pulse", "_state")

    def __init__(self, state: AdminState) -> None:
        self._state = state
        self._assets = read_assets()
        self._pulse = Pulse(state)

    def __repr__(self) -> str:
        return f"<Dashboard {self._pulse!r}>"

    def add_to(self, app: web.Application) -> None:
        """Add the routes, and the pulse for as long as the application runs."""
        app.add_routes(
            [
                web.get("/static/{path:.+}", self.show_file),
                web.get("/api/stream", self.stream),
                web.get("/api/view/merged", self.show_merged),
            ]
        )
        app.on_shutdown.append(self._close)
        app.cleanup_ctx.append(self._run)

    async def _close(self, app: web.Application) -> None:
        self._pulse.close()

    async def _run(self, app: web.Application) -> AsyncIterator[None]:
        pulse = asyncio.create_task(self._pulse.run())
        yield
        pulse.cancel()
        await asyncio.gather(pulse, return_exceptions=True)

    def page(self, request: web.Request, status: int = 200) -> web.Response:
        """Return the page; its status is 401 where it has to ask for the token."""
        return _file(request, self._assets[PAGE], status)

    async def show_file(self, request: web.Request) -> web.Response:
        """Serve one of the page's files."""
        asset = self._assets.get(request.match_info["path"])
        if asset is None:
            raise web.HTTPNotFound
        return _file(request, asset)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send everything, and then what changes, until the page is closed."""
        check_query(request, "view")
        tab = self._pulse.join(request.query.get("view") == "1")
        response = web.StreamResponse(
            headers={
                hdrs.CONTENT_TYPE: "text/event-stream",
                hdrs.CACHE_CONTROL: "no-store",
                "X-Accel-Buffering": "no",
            }
        )
        try:
            await response.prepare(request)
            async for frames in tab.batches():
                async with asyncio.timeout(_WRITE_S):
                    await response.write(frames)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._pulse.leave(tab)
        return response

    async def show_merged(self, request: web.Request) -> web.Response:
        """Show the most used prefixes of all backends as one tree."""
        check_query(request, "nodes")
        num_nodes = read_number(request, "nodes", _DEFAULT_NODES, MAX_NODES)
        steps = self._state.survey(num_nodes)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return json_answer(done.value)
            await asyncio.sleep(0)


def wants_page(request: web.Request) -> bool:
    """Tell whether a request of ``/`` comes from a browser, or from curl."""
    accept = request.headers.get(hdrs.ACCEPT, "*/*")
    return "json" not in accept or "html" in accept


def is_browser(request: web.Request) -> bool:
    """Tell whether a browser opens the page."""
    accept = request.headers.get(hdrs.ACCEPT, "")
    return request.path == "/" and request.method == "GET" and "html" in accept


def _file(request: web.Request, asset: Asset, status: int = 200) -> web.Response:
    headers = {**HEADERS, hdrs.CACHE_CONTROL: "no-cache", hdrs.ETAG: asset.etag}
    headers[hdrs.VARY] = "Accept-Encoding"
    if status == 200 and request.headers.get(hdrs.IF_NONE_MATCH) == asset.etag:
        return web.Response(status=304, headers=headers)
    body = asset.body
    if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        headers[hdrs.CONTENT_ENCODING] = "gzip"
        body = asset.packed
    return web.Response(
        status=status,
        body=body,
        content_type=asset.content_type,
        charset="utf-8",
        headers=headers,
    )
