"""What is done at the engines for the conductor, one method a kind of action."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator

from warmroute.adapters.endpoint import MAX_ANSWER_BYTES
from warmroute.adapters.kv_control import Changed, KVControl
from warmroute.adapters.kv_requests import (
    MAX_BLOCKS,
    BlocksRequest,
    RestoreRequest,
    RetainRequest,
)
from warmroute.policies.conducting.item import Item, Shared
from warmroute.policies.errors import BackendUnavailable
from warmroute.policies.kv.radix import PrefixIndex
from warmroute.policies.kv.run import Run
from warmroute.proxy.conductor.tokens import PrefixTokens
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.kv.controls import CALL_S, Controls
from warmroute.proxy.kv.prefixes import keys_of
from warmroute.proxy.view import View

_COPY_AGAIN_S = 30.0
_MAX_COPIES = 256
_ONE_RANK = 3  # tiers


class Deeds:
    """Find the blocks of items as engines know them, and act on them.

    More blocks than one call may name take several.

    Args:
        fleet: The backends.
        controls: Their levers.
        view: What they hold; only those that announce their blocks are acted on.
        index: The blocks of the view.
        tokens: Token ids of prefixes that may be copied.
    """

    __slots__ = ("_controls", "_copied", "_fleet", "_index", "_tokens", "_view")

    def __init__(
        self,
        fleet: Fleet,
        controls: Controls,
        view: View,
        index: PrefixIndex,
        tokens: PrefixTokens,
    ) -> None:
        self._fleet = fleet
        self._controls = controls
        self._view = view
        self._index = index
        self._tokens = tokens
        self._copied: OrderedDict[tuple[int, str], float] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Deeds for {self._fleet!r}>"

    @property
    def has_lower_tiers(self) -> bool:
        """Whether any engine has told of host memory or disk."""
        return self._index.holders.has_tiers

    def resident(self, item: Item) -> list[int]:
        """Return the engine's hashes of an item's blocks on its GPU, head first."""
        return self._keys(item, slice(0, 1))

    def lower(self, item: Item) -> list[int]:
        """Return those behind the resident ones that lie in host memory or on disk."""
        if not self._index.holders.has_tiers:
            return []
        every = self._keys(item, slice(0, None))
        return every[len(self.resident(item)) :]

    def can(self, name: str, verb: str) -> bool:
        """Tell whether a backend has a lever."""
        return self._controls.can(name, verb)

    async def retain(self, name: str, keys: list[int], ttl_s: float) -> int:
        """Keep blocks, the first ones first; returns how many are kept."""
        num_kept = 0
        for some in _calls(keys):
            control = self._controls.of(self._backend(name))
            told = await control.retain(RetainRequest(hashes=some, ttl_s=ttl_s))
            num_kept += told.retained
            if told.retained < len(some):
                break
        return num_kept

    async def release(self, name: str, keys: list[int]) -> None:
        """Keep blocks no longer."""
        for some in _calls(keys):
            control = self._controls.of(self._backend(name))
            await control.release(BlocksRequest(hashes=some))

    async def demote(self, name: str, keys: list[int]) -> int:
        """Make blocks the next victims; returns how many."""
        return await self._change(
            name, keys, lambda control, some: control.demote(BlocksRequest(hashes=some))
        )

    async def restore(self, name: str, keys: list[int]) -> int:
        """Bring blocks back from host memory; returns how many."""
        return await self._change(
            name,
            keys,
            lambda control, some: control.restore(RestoreRequest(hashes=some)),
        )

    def target(self, shared: Shared, now: float) -> str | None:
        """Return an idle backend that lacks a hot prefix which one alone has."""
        found = self._tokens.find(shared.tail)
        run = shared.handle
        if found is None or not isinstance(run, Run):
            return None
        idle = []
        for backend in self._fleet.backends.values():
            if backend.name == shared.backend or backend.state != "up":
                continue
            if not backend.serves(found[0]) or not self._view.has(backend.name):
                continue
            if keys_of(self._view.tiers(backend.name), run, shared.tail):
                return None
            copied = self._copied.get((shared.tail, backend.name))
            is_new = copied is None or now - copied > _COPY_AGAIN_S
            if is_new and not backend.candidate.requests and self._hears(backend.name):
                idle.append(backend.name)
        return idle[0] if idle else None

    async def replicate(self, shared: Shared, name: str, now: float) -> int:
        """Have a backend compute a prefix, by a request for one token."""
        found = self._tokens.find(shared.tail)
        backend = self._backend(name)
        endpoint = self._fleet.endpoint(backend)
        if found is None or endpoint is None:
            return 0
        self._copied[shared.tail, name] = now
        if len(self._copied) > _MAX_COPIES:
            self._copied.popitem(last=False)
        model, tokens = found
        body = {"model": model, "prompt": tokens.tolist(), "max_tokens": 1}
        answer = await endpoint.allowing(MAX_ANSWER_BYTES, CALL_S).post(
            "/v1/completions", body
        )
        if answer.status != 200:
            raise BackendUnavailable(
                f"{name} answered HTTP {answer.status} to the copy of a prefix"
            )
        return len(tokens)

    def _keys(self, item: Item, tiers: slice) -> list[int]:
        run = item.handle
        if not isinstance(run, Run) or not self._hears(item.backend):
            return []
        if run.parent is None:  # it has left the index, and the engine too
            return []
        return keys_of(self._view.tiers(item.backend)[tiers], run, item.tail)

    def _hears(self, name: str) -> bool:
        """Tell whether a backend announces its blocks, and is one rank alone."""
        if not self._view.has(name) or len(self._view.tiers(name)) > _ONE_RANK:
            return False
        return self._view.facts(name)["source"] == "events"

    def _backend(self, name: str) -> Backend:
        backend = self._fleet.backends.get(name)
        if backend is None:
            raise BackendUnavailable(f"backend {name} is gone")
        return backend

    async def _change(
        self,
        name: str,
        keys: list[int],
        call: Callable[[KVControl, list[int]], Awaitable[Changed]],
    ) -> int:
        """Make as many calls as the blocks take; returns how many were changed."""
        num_changed = 0
        for some in _calls(keys):
            told = await call(self._controls.of(self._backend(name)), some)
            num_changed += told.changed
        return num_changed


def _calls(keys: list[int]) -> Iterator[list[int]]:
    """Yield what one call after the other may name."""
    for at in range(0, len(keys), MAX_BLOCKS):
        yield keys[at : at + MAX_BLOCKS]
