"""KV control of a backend that offers ``/warmroute/kv/{verb}``."""

from typing import TypeVar

import msgspec

from warmroute.adapters.endpoint import Answer, Endpoint
from warmroute.adapters.kv_control import (
    SHAPES,
    VERBS,
    BudgetState,
    Capabilities,
    Changed,
    Evicted,
    Flushed,
    PolicyState,
    Retained,
    Snapshot,
    unsupported,
)
from warmroute.adapters.kv_requests import (
    BlocksRequest,
    BudgetRequest,
    PolicyRequest,
    Request,
    RestoreRequest,
    RetainRequest,
    SnapshotRequest,
)
from warmroute.policies.errors import ClientError, ProtocolMismatch

PATH = "/warmroute/kv"
NO_DOOR = "the engine does not offer /warmroute/kv"

MAX_REASON = 1_000
"""Most characters of an engine's own words that are passed on."""

_MAX_CODE = 100

_T = TypeVar("_T", bound=msgspec.Struct)


async def read_snapshot(endpoint: Endpoint) -> Snapshot | None:
    """List what is cached, with tokens; None where the engine offers no such list.

    A door that is shut or wants another key offers none.

    Raises:
        BackendUnavailable: There is no answer in time.
        ProtocolMismatch: The answer is something else.
    """
    try:
        return await KVControlClient(endpoint).snapshot(SnapshotRequest(token_ids=True))
    except ClientError as error:
        if error.status >= 500 and error.status != 501:
            raise ProtocolMismatch(f"{endpoint.url}{PATH}: {error.message}") from error
        return None


class _Refusal(msgspec.Struct):
    message: str
    code: str | int | None = None


class _RefusalBody(msgspec.Struct):
    error: _Refusal


class KVControlClient:
    """Drive the cache of one backend over HTTP (`KVControl`).

    The engine's token is the backend's key, which the endpoint sends with each call.

    Args:
        endpoint: Where to ask.
    """

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"<KVControlClient {self._endpoint.url}>"

    async def capabilities(self, request: Request) -> Capabilities:
        """Say what works; an engine that refuses to tell can do nothing."""
        try:
            return await self._ask("capabilities", request, Capabilities)
        except ClientError as error:
            if error.status >= 500 and error.status != 501:
                raise
            reason = NO_DOOR if error.status == 501 else error.message
            return Capabilities(verbs=dict.fromkeys(VERBS, reason))

    async def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """List all resident blocks with a sequence barrier."""
        return await self._ask("snapshot", request, Snapshot)

    async def flush(self, request: Request) -> Flushed:
        """Drop everything that nobody uses."""
        return await self._ask("flush", request, Flushed)

    async def evict(self, request: BlocksRequest) -> Evicted:
        """Drop the named blocks, suffix first."""
        return await self._ask("evict", request, Evicted)

    async def retain(self, request: RetainRequest) -> Retained:
        """Keep resident blocks from eviction."""
        return await self._ask("retain", request, Retained)

    async def release(self, request: BlocksRequest) -> Changed:
        """Retain the named blocks no longer."""
        return await self._ask("release", request, Changed)

    async def demote(self, request: BlocksRequest) -> Changed:
        """Make the named blocks the next victims."""
        return await self._ask("demote", request, Changed)

    async def offload(self, request: BlocksRequest) -> Changed:
        """Move blocks to host memory."""
        return await self._ask("offload", request, Changed)

    async def restore(self, request: RestoreRequest) -> Changed:
        """Move blocks back from host memory, into the cache or a running request."""
        return await self._ask("restore", request, Changed)

    async def policy(self, request: PolicyRequest) -> PolicyState:
        """Read or change the block eviction policy."""
        return await self._ask("policy", request, PolicyState)

    async def budget(self, request: BudgetRequest) -> BudgetState:
        """Read or change the default token budget of new requests."""
        return await self._ask("budget", request, BudgetState)

    async def _ask(self, verb: str, request: Request, kind: type[_T]) -> _T:
        path = f"{PATH}/{verb}"
        body = msgspec.to_builtins(request)
        if SHAPES[verb].reads and not body:
            answer = await self._endpoint.get(path)
        else:
            answer = await self._endpoint.post(path, body)
        if answer.status != 200:
            raise self._refusal(verb, path, answer)
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except (ValueError, RecursionError) as error:
            raise ProtocolMismatch(
                f"{self._endpoint.url}{path} answered something else: {error}"
            ) from error

    def _refusal(self, verb: str, path: str, answer: Answer) -> Exception:
        refusal = _read_refusal(answer)
        code = str(refusal.code)[:_MAX_CODE] if refusal else ""
        if answer.status in (404, 405):
            if refusal is None or not code.startswith("kv_"):
                return unsupported(verb, NO_DOOR)
            return unsupported(verb, refusal.message)
        if refusal is None:
            return ProtocolMismatch(
                f"{self._endpoint.url}{path} answered HTTP {answer.status} "
                f"without saying why"
            )
        return ClientError(answer.status, code, refusal.message)


class NoKVControl(KVControlClient):
    """Refuse every verb of an engine that is not known to have levers, unasked."""

    __slots__ = ()

    async def _ask(self, verb: str, request: Request, kind: type[_T]) -> _T:
        raise unsupported(verb, NO_DOOR)


def _read_refusal(answer: Answer) -> _Refusal | None:
    try:
        told = msgspec.json.decode(answer.body, type=_RefusalBody).error
        return _Refusal(told.message[:MAX_REASON], told.code)
    except (ValueError, RecursionError):
        return None
