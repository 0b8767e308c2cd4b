"""The verbs of KV control for the whole fleet, as the admin port offers them."""

import asyncio
import logging
import time

import msgspec
from msgspec import Struct

from warmroute.adapters.kv_control import SHAPES, perform
from warmroute.adapters.kv_requests import Request
from warmroute.policies.errors import AdapterError, BackendUnavailable, ClientError
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.kv.aftermath import Aftermath
from warmroute.proxy.kv.controls import Controls
from warmroute.proxy.kv.order import Order
from warmroute.proxy.kv.prefixes import Sessions, find_run, keys_of
from warmroute.proxy.kv.rehearsal import rehearse
from warmroute.proxy.view import View

logger = logging.getLogger(__name__)

_PATIENCE_S = 0.25
_PAUSE_S = 0.02


class Desk:
    """Take orders for one backend or all, and answer for each by its name.

    A backend is changed by one order at a time; what conflicts with one that is under
    way is refused, not queued.

    Args:
        fleet: The backends.
        controls: Their levers.
        view: What they are believed to hold; follows what is done to them.
        index: The blocks of the view.
        sessions: What sessions ended with.
    """

    __slots__ = (
        *("_aftermath", "_changing", "_controls", "_fleet", "_index", "_sessions"),
        "_view",
    )

    def __init__(
        self,
        fleet: Fleet,
        controls: Controls,
        view: View,
        index: PrefixIndex,
        sessions: Sessions,
    ) -> None:
        self._fleet = fleet
        self._controls = controls
        self._view = view
        self._index = index
        self._sessions = sessions
        self._aftermath = Aftermath(view, index)
        self._changing: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Desk {self._changing}>"

    async def fill(self, verb: str, body: bytes) -> dict[str, object]:
        """Do what *body* orders; returns the JSON of the answer.

        Raises:
            ClientError: The order as a whole is wrong; what goes wrong at one backend
                stands in its place in the answer.
        """
        order = Order(verb, body)
        backends = self._meant(order)
        await self._check(order, backends)
        results = await asyncio.gather(
            *(self._fill_one(order, one) for one in backends)
        )
        names = (one.name for one in backends)
        return {"results": dict(zip(names, results, strict=True))}

    def _meant(self, order: Order) -> list[Backend]:
        backends = self._fleet.backends
        if order.backend is None:
            return list(backends.values())
        if order.backend not in backends:
            known = ", ".join(sorted(backends)) or "none"
            raise ClientError(
                404,
                "backend_not_found",
                f"unknown backend {order.backend[:200]!r} (known: {known})",
            )
        return [backends[order.backend]]

    async def _check(self, order: Order, backends: list[Backend]) -> None:
        """Refuse a prefix or session of which nobody who could tell knows."""
        if not order.names_prefix:
            return
        hashes = {self._hash(order, one) for one in backends if _is_alive(one)}
        for block_hash in hashes:
            if block_hash is None or await find_run(self._index, block_hash):
                return
        if hashes:
            raise ClientError(
                404,
                "prefix_not_found",
                "no backend is known to hold prefix "
                f"{' or '.join(f'{one:016x}' for one in hashes if one is not None)}; "
                "/api/view shows those that are",
            )

    def _hash(self, order: Order, backend: Backend) -> int | None:
        """Return the last block of what is meant, in the block size of a backend."""
        if order.session is None:
            return order.prefix
        ends = self._sessions.find(order.session)
        if ends is None:
            raise ClientError(
                404,
                "session_not_found",
                f"no prompt of session {order.session[:200]!r} is remembered "
                "(65,536 sessions are, by header or body; prompts below one block "
                "are not)",
            )
        return ends.get(self._view.block_size(backend.name))

    async def _fill_one(self, order: Order, backend: Backend) -> dict[str, object]:
        try:
            _check_life(backend)
            keys = None
            if order.names_prefix:
                keys = await self._keys(backend, self._hash(order, backend))
            request = order.request(keys)
            answer = await self._perform(order, backend, request)
            content: dict[str, object] = msgspec.to_builtins(answer)
            return content
        except ClientError as error:
            return _failure(error.code, error.message)
        except BackendUnavailable as error:
            return _failure("backend_unavailable", str(error))
        except AdapterError as error:
            return _failure("backend_answer_invalid", str(error))
        except Exception:  # an adapter is a plugin and may raise anything
            logger.exception("kv_verb_failed", extra={"backend": backend.name})
            return _failure("internal_error", "the adapter failed; see the log")

    async def _keys(self, backend: Backend, block_hash: int | None) -> list[int]:
        """Return the engine's own hashes of a prefix; new ones are on their way."""
        name, deadline = backend.name, time.monotonic() + _PATIENCE_S
        while True:
            keys = await self._known(name, block_hash)
            if keys:
                return keys
            _check_life(backend)
            source = self._view.facts(name)["source"]
            if source != "events":
                raise ClientError(
                    409,
                    "kv_hashes_unknown",
                    f"the view of {name} is {source!r}: its engine's own hashes of "
                    "this prefix are not known; follow its KV events, or name "
                    "blocks by prompt or token_ids",
                )
            if time.monotonic() > deadline:
                raise ClientError(
                    404, "prefix_not_cached", f"{name} holds nothing of this prefix"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _known(self, name: str, block_hash: int | None) -> list[int]:
        if block_hash is None:
            return []
        run = await find_run(self._index, block_hash)
        if run is None:
            return []
        return keys_of(self._view.tiers(name), run, block_hash)

    async def _perform(
        self, order: Order, backend: Backend, request: Request
    ) -> Struct:
        control, verb, name = self._controls.of(backend), order.verb, backend.name
        if order.is_rehearsal:
            return await rehearse(self._fleet, backend, control, verb, request)
        if SHAPES[verb].reads and not msgspec.to_builtins(request):
            return await perform(control, verb, request)
        if name in self._changing:
            raise ClientError(
                409,
                "kv_conflict",
                f"{self._changing[name]} is under way on {name}, and {verb} has to "
                "wait for its end; ask again",
            )
        self._changing[name] = verb
        try:
            answer = await perform(control, verb, request)
            await self._aftermath.follow(name, answer)
            return answer
        finally:
            del self._changing[name]


def _is_alive(backend: Backend) -> bool:
    return backend.vitals.life == "up"


def _check_life(backend: Backend) -> None:
    if not _is_alive(backend):
        raise BackendUnavailable(
            f"backend {backend.name} is {backend.vitals.life}: its engine at "
            f"{backend.url} does not answer its probes"
        )


def _failure(code: str, message: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message}}
