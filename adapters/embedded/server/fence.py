"""The outermost layer: names requests, makes exceptions answers."""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from warmroute.adapters.embedded.server.body import MAX_BODY_BYTES
from warmroute.adapters.refusal import refuse, refuse_http
from warmroute.policies.errors import ClientError, WarmrouteError

X_REQUEST_ID = "X-Request-Id"
REQUEST_ID = web.RequestKey("request_id", str)
BEGUN = web.RequestKey("begun", bool)

_GOOD_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


@web.middleware
async def fence(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Take the client's request id or make one, and answer whatever happens."""
    given = request.headers.get(X_REQUEST_ID, "")
    request[REQUEST_ID] = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
    try:
        return await handler(request)
    except ClientError as error:
        return refuse(error)
    except web.HTTPException as error:
        return refuse_http(error, request, MAX_BODY_BYTES)
    except WarmrouteError as error:
        return refuse(ClientError(500, "engine_failed", str(error)))
    except ConnectionError:  # the client left; nobody reads what we return
        return refuse(ClientError(499, "client_gone", "the client went away"))
    except Exception:
        if BEGUN in request:  # aiohttp logs it and cuts the connection
            raise
        logger.exception(
            "request_failed path=%s request_id=%s", request.path, request[REQUEST_ID]
        )
        return refuse(
            ClientError(
                500, "internal_error", "the engine's server failed; see its log"
            )
        )


async def name_response(request: web.Request, response: web.StreamResponse) -> None:
    """Put the request id on an answer that is about to go out."""
    request[BEGUN] = True
    if REQUEST_ID in request:
        response.headers[X_REQUEST_ID] = request[REQUEST_ID]
