"""KV control of an engine with a plugin, as its API server offers it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

import msgspec

from warmroute.adapters.kv_control import (
    BudgetState,
    Capabilities,
    Changed,
    Evicted,
    Flushed,
    Kept,
    PolicyState,
    Reason,
    ResidentBlock,
    Retained,
    Snapshot,
    Tier,
)
from warmroute.adapters.kv_plugin.calls import CoreCalls, Part
from warmroute.adapters.kv_plugin.timer import ExpiryTimer
from warmroute.adapters.kv_plugin.verbs import Chain, packed
from warmroute.adapters.kv_requests import (
    BlocksRequest,
    BudgetRequest,
    PolicyRequest,
    Request,
    RestoreRequest,
    RetainRequest,
    SnapshotRequest,
    check_named,
)
from warmroute.policies.errors import ClientError

Tokenize = Callable[[BlocksRequest], Awaitable[Sequence[int]]]
Generate = Callable[[Sequence[int], str | None], Awaitable[None]]


class PluginKVControl:
    """Perform the verbs on one engine (`KVControl`).

    Args:
        calls: Reach the engine.
        timer: Has the engine let go of what is due.
        tokenize: Turns a prompt or a chat into token ids as the server does.
        generate: Generates one token behind a prompt, with or without a salt.
    """

    __slots__ = ("_calls", "_generate", "_timer", "_tokenize")

    def __init__(
        self,
        calls: CoreCalls,
        timer: ExpiryTimer,
        tokenize: Tokenize,
        generate: Generate,
    ) -> None:
        self._calls = calls
        self._generate = generate
        self._timer = timer
        self._tokenize = tokenize

    def __repr__(self) -> str:
        return f"<PluginKVControl {self._calls!r}>"

    async def capabilities(self, request: Request) -> Capabilities:
        """Say what works on this engine."""
        (part,) = await self._calls.run("capabilities")
        return Capabilities(
            verbs=cast(dict[str, bool | str], part["verbs"]),
            running=cast(dict[str, bool | str], part["running"]),
        )

    async def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """List all resident blocks with a sequence barrier."""
        head, *parts = await self._calls.run("snapshot", token_ids=request.token_ids)
        rows = cast(list[list[object]], _joined(parts, "rows"))
        return Snapshot(
            seq=cast(int | None, head["seq"]),
            block_size=cast(int, head["block_size"]),
            blocks=await asyncio.to_thread(_blocks, rows),
            copied_bytes=cast(int | None, head.get("copied_bytes")),
        )

    async def flush(self, request: Request) -> Flushed:
        """Drop everything that no request uses and that is not retained."""
        parts = await self._calls.run("flush")
        return Flushed(
            flushed=bool(parts[-1]["empty"]),
            dropped=_sum(parts, "dropped"),
            referenced=cast(int, parts[-1]["used"]),
        )

    async def evict(self, request: BlocksRequest) -> Evicted:
        """Drop the named blocks, suffix first."""
        hashes = await self._resolve(request)
        parts = await self._calls.run("evict", hashes=packed(hashes))
        kept = cast(list[tuple[int, Reason]], _joined(parts, "kept"))
        return Evicted(
            evicted=cast(list[int], _joined(parts, "evicted")),
            kept=[Kept(hash=key, reason=reason) for key, reason in kept],
        )

    async def retain(self, request: RetainRequest) -> Retained:
        """Keep resident blocks from eviction, head first, up to the cap."""
        hashes = await self._resolve(request)
        try:
            parts = await self._calls.run(
                "retain", hashes=packed(hashes), ttl_s=request.ttl_s
            )
        finally:
            self._timer.look_again()
        return Retained(
            retained=cast(int, parts[-1]["retained"]),
            named=len(hashes),
            total=cast(int, parts[-1]["total"]),
            cap=cast(int, parts[-1]["cap"]),
        )

    async def release(self, request: BlocksRequest) -> Changed:
        """Retain the named blocks no longer."""
        return await self._change("release", request)

    async def demote(self, request: BlocksRequest) -> Changed:
        """Make the named blocks the next victims."""
        return await self._change("demote", request)

    async def offload(self, request: BlocksRequest) -> Changed:
        """Give up the pages of blocks that are in host memory."""
        return await self._change("offload", request)

    async def restore(self, request: RestoreRequest) -> Changed:
        """Bring blocks back from host memory, by requests of one token.

        Those of a running request are put back where they were.
        """
        if request.request_id is not None:
            return await self._bring_back(request)
        hashes = await self._resolve(request)
        parts = await self._calls.run("restorable", hashes=packed(hashes))
        back: list[int] = []
        for chain in cast(list[Chain], _joined(parts, "chains")):
            tokens, salt, keys = chain
            await self._generate(tokens, salt)
            back += keys
        if not back:
            return Changed(changed=0, named=len(hashes))
        parts = await self._calls.run("resident", hashes=packed(back))
        return Changed(changed=_sum(parts, "resident"), named=len(hashes))

    async def policy(self, request: PolicyRequest) -> PolicyState:
        """Read or change the block eviction policy; residents stay."""
        parts = await self._calls.run(
            "policy", name=request.name, options=request.options
        )
        return PolicyState(
            name=str(parts[-1]["name"]),
            options=cast(dict[str, object], parts[-1]["options"]),
            available=cast(list[str], parts[-1]["available"]),
        )

    async def budget(self, request: BudgetRequest) -> BudgetState:
        """Read or change the budget of new requests; those that run keep theirs."""
        asked = msgspec.structs.asdict(request)
        parts = await self._calls.run("budget", **asked)
        return BudgetState(**cast(dict[str, Any], parts[-1]["budget"]))

    async def _bring_back(self, request: RestoreRequest) -> Changed:
        parts = await self._calls.run(
            "bring_back",
            request_id=request.request_id,
            hold_tokens=request.hold_tokens,
        )
        return Changed(changed=_sum(parts, "changed"), named=_sum(parts, "named"))

    async def _change(self, verb: str, request: BlocksRequest) -> Changed:
        hashes = await self._resolve(request)
        parts = await self._calls.run(verb, hashes=packed(hashes))
        return Changed(changed=_sum(parts, "changed"), named=len(hashes))

    async def _resolve(self, request: BlocksRequest) -> list[int]:
        """Return the keys meant, each once; those of a sequence head first.

        Raises:
            ClientError: The names stand for no full block or for too many.
        """
        if request.hashes is not None:
            return list(dict.fromkeys(one & (2**64 - 1) for one in request.hashes))
        tokens = await self._tokenize(request)
        parts = await self._calls.run(
            "hashes", token_ids=list(tokens), cache_salt=request.cache_salt
        )
        hashes = cast(list[int], _joined(parts, "hashes"))
        check_named(len(tokens), len(hashes))
        if len(hashes) <= request.skip_blocks:
            raise ClientError(
                400,
                "kv_no_blocks",
                f"{len(tokens)} tokens are {len(hashes)} full blocks, of which "
                f"skip_blocks leaves out {request.skip_blocks}; name one block or more",
            )
        return hashes[request.skip_blocks :]


def _joined(parts: Iterable[Part], name: str) -> list[object]:
    return [one for part in parts for one in cast(Sequence[object], part.get(name, ()))]


def _sum(parts: Iterable[Part], name: str) -> int:
    return sum(cast(int, part.get(name, 0)) for part in parts)


def _blocks(rows: list[list[object]]) -> list[ResidentBlock]:
    """Read rows of hash, parent, depth, refs and tier; parents come before children."""
    rows.sort(key=lambda row: cast(int, row[2]))
    return [_block(row) for row in rows]


def _block(row: list[object]) -> ResidentBlock:
    key, parent, _, refs, tier, *content = row
    tokens, extra_keys = content or (None, None)
    return ResidentBlock(
        hash=cast(int, key),
        parent=cast(int | None, parent),
        refs=cast(int, refs),
        tier=cast(Tier, tier),
        token_ids=cast(list[int] | None, tokens),
        extra_keys=cast(list[object] | None, extra_keys),
    )
