"""The admin server on its socket; what is not HTTP is refused here, too."""

import asyncio
import logging
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from warmroute.adapters.refusal import refuse
from warmroute.policies.errors import ClientError
from warmroute.proxy.admin.json_answer import SERVER_NAME

logger = logging.getLogger(__name__)


class AdminListener:
    """Serve the admin application on one address.

    Args:
        app: What `make_admin` made.
        farewell_s: For the last answers to leave.
    """

    __slots__ = ("_runner", "_server")

    def __init__(self, app: web.Application, farewell_s: float) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=farewell_s,
        )
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<AdminListener {self._server!r}>"

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the address.

        Raises:
            OSError: The address cannot be used.
        """
        await self._runner.setup()
        manager = self._runner.server
        assert manager is not None  # there is one once it is set up
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {"loop": loop, "access_log": None}
        # Packed bodies are refused; unpacking them would be done before that.
        options["auto_decompress"] = False
        self._server = await loop.create_server(
            lambda: _Connection(manager, **options), host, port
        )
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        """Stop listening, and let the last answers leave."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()


class _Connection(web.RequestHandler):
    """Refuse in the one shape, and without a traceback, what cannot be parsed."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        fault = "is not valid HTTP/1.1"
        if isinstance(exc, LineTooLong):
            fault = "has a line over 8,190 bytes"
        logger.debug("admin_request_malformed", extra={"fault": type(exc).__name__})
        response = refuse(ClientError(400, "bad_request", f"the request {fault}"))
        response.headers[hdrs.SERVER] = SERVER_NAME
        response.force_close()
        return response
