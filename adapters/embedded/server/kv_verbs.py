"""The verbs of KV control, done to the embedded engine's cache.

Each verb runs on the compute thread between two steps, so that it sees and leaves
the cache whole. Those that only keep books touch at most the blocks of the pool and
take milliseconds; those that move bytes go in slices, with steps in between. What a
verb changes is published before it answers.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from warmroute.adapters.embedded.engine.engine import Engine
from warmroute.adapters.embedded.engine.state import EngineState
from warmroute.adapters.embedded.server.block_names import BlockNames
from warmroute.adapters.embedded.server.default_budget import (
    change_budget,
    read_budget,
)
from warmroute.adapters.embedded.server.kv_events import KVEventPublisher
from warmroute.adapters.embedded.server.kv_snapshot import host_blocks, read_snapshot
from warmroute.adapters.embedded.server.kv_work import (
    cached_blocks,
    evict_blocks,
    flush_all,
    retain_blocks,
)
from warmroute.adapters.kv_control import (
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
from warmroute.policies.errors import ClientError, PolicyError
from warmroute.policies.eviction.registry import evictions

T = TypeVar("T")

SLICE = 32
"""Blocks whose bytes are moved between two steps."""

NO_HOST = "the engine has no host tier; start it with --host-blocks"
NO_BUDGET = "the engine was built without token eviction"
NO_RETURN = (
    "what a budget of this engine evicts is not kept; method infinigen keeps all in "
    "host memory and fetches it by itself"
)


class _Move(Protocol):
    """Move blocks between tiers, and say how many."""

    def __call__(self, state: EngineState, /, hashes: Iterable[int]) -> int: ...


class EngineKVControl:
    """Perform the verbs on one embedded engine (`KVControl`).

    Args:
        engine: The engine, started.
        names: Finds the blocks that a request names.
        publisher: Publishes the engine's KV events; None without events.
        has_budgets: Whether the engine was given rules of token eviction.
    """

    __slots__ = ("_engine", "_has_budgets", "_names", "_options", "_publisher")

    def __init__(
        self,
        engine: Engine,
        names: BlockNames,
        publisher: KVEventPublisher | None = None,
        has_budgets: bool = False,
    ) -> None:
        self._engine = engine
        self._names = names
        self._publisher = publisher
        self._has_budgets = has_budgets
        self._options: dict[str, object] = {}

    def __repr__(self) -> str:
        return f"<EngineKVControl of {self._engine!r}>"

    async def capabilities(self, request: Request) -> Capabilities:
        """Say what works on this engine."""
        verbs: dict[str, bool | str] = dict.fromkeys(VERBS, True)
        if not self._has_host:
            verbs |= {"offload": NO_HOST, "restore": NO_HOST}
        if not self._has_budgets:
            verbs["budget"] = NO_BUDGET
        return Capabilities(verbs=verbs, running={"restore": NO_RETURN})

    async def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """List all resident blocks with a sequence barrier."""
        return await self._call(
            lambda state: read_snapshot(state, self._publisher, request.token_ids)
        )

    async def flush(self, request: Request) -> Flushed:
        """Drop everything that nobody uses, on the host too."""
        return await self._call(flush_all)

    async def evict(self, request: BlocksRequest) -> Evicted:
        """Drop the named blocks from pages and host, suffix first."""
        hashes = await self._names.resolve(request)
        return await self._call(lambda state: evict_blocks(state, hashes))

    async def retain(self, request: RetainRequest) -> Retained:
        """Keep resident blocks from eviction, head first, up to the cap."""
        hashes = await self._names.resolve(request)
        return await self._call(
            lambda state: retain_blocks(state, hashes, request.ttl_s)
        )

    async def release(self, request: BlocksRequest) -> Changed:
        """Retain the named blocks no longer."""
        hashes = await self._names.resolve(request)
        released = await self._call(lambda state: state.retention.release(hashes))
        return Changed(changed=released, named=len(hashes))

    async def demote(self, request: BlocksRequest) -> Changed:
        """Make the named blocks the next victims."""
        hashes = await self._names.resolve(request)
        demoted = await self._call(lambda state: state.pool.demote(hashes))
        return Changed(changed=demoted, named=len(hashes))

    async def offload(self, request: BlocksRequest) -> Changed:
        """Move blocks to host memory; those in use are copied and stay.

        So do the first ones, not copied, of more than host memory holds.
        """
        self._check_host("offload")
        hashes = await self._names.resolve(request)
        ordered = await self._call(lambda state: cached_blocks(state, hashes))
        fitting = ordered[-self._engine.options.host_blocks :]
        # From the tail, or every slice would leave its blocks followed by others.
        moved = await self._in_slices(fitting[::-1], EngineState.offload)
        return Changed(changed=moved, named=len(hashes))

    async def restore(self, request: RestoreRequest) -> Changed:
        """Copy blocks back from host memory; they stay there, too."""
        if request.request_id is not None:
            raise unsupported("restore", NO_RETURN)
        self._check_host("restore")
        named = await self._names.resolve(request)
        wanted = set(named)
        ordered = await self._call(
            lambda state: [one for one in host_blocks(state) if one in wanted]
        )
        restored = await self._in_slices(ordered, EngineState.restore)
        return Changed(changed=restored, named=len(named))

    async def policy(self, request: PolicyRequest) -> PolicyState:
        """Read or change the block eviction policy."""
        try:
            return await self._call(partial(self._put_policy, request=request))
        except PolicyError as error:
            raise ClientError(400, "kv_policy_invalid", str(error)) from error

    async def budget(self, request: BudgetRequest) -> BudgetState:
        """Read or change the default token budget of new requests."""
        if not self._has_budgets:
            raise unsupported("budget", NO_BUDGET)
        if request.method is None:
            return await self._call(read_budget)
        return await self._call(lambda state: change_budget(state, request))

    def _put_policy(self, state: EngineState, request: PolicyRequest) -> PolicyState:
        # In one go, so that of two changes at once each answers with its own.
        if request.name is not None:
            options = request.options or {}
            state.set_eviction(request.name, **options)
            self._options = options
        return PolicyState(
            name=state.pool.policy.name,
            options=self._options,
            available=evictions.names(),
        )

    @property
    def _has_host(self) -> bool:
        return self._engine.options.host_blocks > 0

    def _check_host(self, verb: str) -> None:
        if not self._has_host:
            raise unsupported(verb, NO_HOST)

    async def _in_slices(
        self,
        hashes: Sequence[int],
        move: _Move,
    ) -> int:
        moved = 0
        for at in range(0, len(hashes), SLICE):
            moved += await self._call(partial(move, hashes=hashes[at : at + SLICE]))
        return moved

    async def _call(self, function: Callable[[EngineState], T]) -> T:
        def run(state: EngineState) -> T:
            state.retention.expire()
            try:
                return function(state)
            finally:
                state.contents.observer.batch_ended()

        return await self._engine.call(run)
