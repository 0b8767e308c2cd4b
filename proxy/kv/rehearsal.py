"""What a verb would do to one backend, without doing it."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from warmroute.adapters.kv_control import (
    KVControl,
    ResidentBlock,
    Snapshot,
    unsupported,
)
from warmroute.adapters.kv_events.wire import block_key
from warmroute.adapters.kv_requests import (
    BlocksRequest,
    BudgetRequest,
    PolicyRequest,
    Request,
    RestoreRequest,
    SnapshotRequest,
)
from warmroute.policies.errors import ClientError
from warmroute.proxy.fleet import Fleet
from warmroute.proxy.fleet.backend import Backend


class Rehearsed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Say what a verb would meet; nothing was changed.

    Args:
        dry_run: Always true.
        named: Blocks that the request names; all that are cached, without names.
        resident: Those of them that are cached, in any tier.
        in_use: Those of these that a request or a retention holds.
        tokens: Tokens in the resident ones.
        block_size: Tokens a block.
    """

    dry_run: bool
    named: int
    resident: int
    in_use: int
    tokens: int
    block_size: int


async def rehearse(
    fleet: Fleet, backend: Backend, control: KVControl, verb: str, request: Request
) -> Rehearsed:
    """Look up what *request* names on a backend. O(blocks that it has cached).

    Raises:
        ClientError: 501, the engine lacks the verb, or cannot list its blocks, or not
            tokenize; 400, it has no such policy.
    """
    await _check(control, verb, request)
    snapshot = await control.snapshot(SnapshotRequest(token_ids=True))
    if not isinstance(request, BlocksRequest):
        blocks = {one.hash: one for one in snapshot.blocks}
        return _count(snapshot, len(blocks), blocks.values())
    if request.hashes is not None:
        wanted = {block_key(one) for one in request.hashes}
        named = len(wanted)
        found = {
            one.hash: one for one in snapshot.blocks if block_key(one.hash) in wanted
        }
        return _count(snapshot, named, found.values())
    tokens = await _tokens(fleet, backend, verb, request)
    named = max(len(tokens) // snapshot.block_size - request.skip_blocks, 0)
    chain = _chain(snapshot, tokens, request.cache_salt)
    return _count(snapshot, named, chain[request.skip_blocks :])


async def _check(control: KVControl, verb: str, request: Request) -> None:
    """Refuse what the engine is known to lack, and what nobody can rehearse."""
    if isinstance(request, RestoreRequest) and request.request_id is not None:
        raise ClientError(
            501,
            "kv_dry_run_unsupported",
            "kv restore: what a running request gave back is known to its engine "
            "only; leave out dry_run",
        )
    can = (await control.capabilities(Request())).verbs.get(verb, True)
    if can is not True:
        raise unsupported(verb, str(can))
    if isinstance(request, PolicyRequest) and request.name is not None:
        known = (await control.policy(PolicyRequest())).available
        if known and request.name not in known:
            raise ClientError(
                400,
                "kv_policy_invalid",
                f"unknown eviction policy {request.name!r} "
                f"(allowed: {', '.join(sorted(known))})",
            )
    if isinstance(request, BudgetRequest) and request.method is not None:
        raise ClientError(
            501,
            "kv_dry_run_unsupported",
            "kv budget: only the engine can tell whether a budget is a good one, when "
            "it is set; leave out dry_run, or method to see the one in force",
        )


def _count(snapshot: Snapshot, named: int, found: Iterable[ResidentBlock]) -> Rehearsed:
    blocks = list(found)
    return Rehearsed(
        dry_run=True,
        named=named,
        resident=len(blocks),
        in_use=sum(one.refs > 0 for one in blocks),
        tokens=len(blocks) * snapshot.block_size,
        block_size=snapshot.block_size,
    )


def _chain(
    snapshot: Snapshot, tokens: Sequence[int], salt: str | None
) -> list[ResidentBlock]:
    """Return the leading cached blocks of a prompt, found by their tokens."""
    extras = [salt] if salt else []
    behind: dict[tuple[int | None, tuple[int, ...]], ResidentBlock] = {}
    for block in snapshot.blocks:
        is_ours = block.parent is not None or (block.extra_keys or []) == extras
        if block.token_ids is not None and is_ours:
            behind[block.parent, tuple(block.token_ids)] = block
    size, chain = snapshot.block_size, []
    parent: int | None = None
    for at in range(0, len(tokens) - size + 1, size):
        found = behind.get((parent, tuple(tokens[at : at + size])))
        if found is None:
            break
        chain.append(found)
        parent = found.hash
    return chain


async def _tokens(
    fleet: Fleet, backend: Backend, verb: str, request: BlocksRequest
) -> Sequence[int]:
    if request.token_ids is not None:
        return request.token_ids
    body: dict[str, object] = {"prompt": request.prompt}
    if request.messages is not None:
        body = {
            "messages": request.messages,
            "add_generation_prompt": request.add_generation_prompt,
        }
        if request.tools is not None:
            body["tools"] = request.tools
    endpoint = fleet.endpoint(backend)
    model = next(iter(backend.models), None)
    if model is not None:
        body["model"] = model
    tokens = None
    if endpoint is not None:
        tokens = await backend.adapter.tokenize(endpoint, body)
    if tokens is None:
        raise ClientError(
            501,
            "kv_dry_run_unsupported",
            f"kv {verb}: the engine cannot tell the tokens of this prompt, so that a "
            "dry run finds nothing; name blocks by token_ids or hashes",
        )
    return tokens
