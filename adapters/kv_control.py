"""The contract of KV control: what a backend's cache can be told, and answers.

Ten verbs, each with one typed request and one typed answer, the same for every
engine. The engine's own process implements `KVControl` over its cache and offers
it under ``/warmroute/kv/{verb}``; the proxy implements it over that door. What a
backend cannot do, it says in words: see `Capabilities`.

Block hashes are the engine's own, as in its KV events. They take up to 64 bits, so
readers of JSON must not go through floating point.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, cast

from msgspec import Struct, ValidationError
from msgspec import json as msgspec_json

from warmroute.adapters.kv_requests import (
    BlocksRequest,
    BudgetRequest,
    PolicyRequest,
    Request,
    RestoreRequest,
    RetainRequest,
    SnapshotRequest,
)
from warmroute.policies.errors import ClientError
from warmroute.policies.registry import explain_unknown

Tier = Literal["gpu", "host", "disk"]
Reason = Literal["absent", "referenced", "followed"]
"""Why a block was left alone: it is not cached, a request or a retention holds it, or
a block behind it stays, which would be stranded."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """Say for each verb that it works, or in words why it does not.

    Args:
        verbs: What may be done to the cache.
        running: What may be done to the blocks of running requests.
    """

    verbs: dict[str, bool | str]
    running: dict[str, bool | str] = {}


class ResidentBlock(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe one cached block.

    Args:
        hash: The engine's block hash.
        parent: Hash of the block in front; None at the head of a sequence.
        refs: Holders of the block: running requests, and one if it is retained.
        tier: Where it lies.
        token_ids: Its tokens, when asked for.
        extra_keys: What else its hash covers, such as a salt, when asked for.
    """

    hash: int
    parent: int | None
    refs: int
    tier: Tier
    token_ids: list[int] | None = None
    extra_keys: list[object] | None = None


class Snapshot(Struct, frozen=True, kw_only=True):
    """Hold all resident blocks at one moment between two steps.

    Args:
        seq: Sequence number of the last batch of KV events that is contained; the
            next one to apply is ``seq + 1``. None if no batch was published yet.
        block_size: Tokens a block.
        blocks: Each block once a tier that holds it, parents before children.
        copied_bytes: Bytes of host memory with copies of what running requests gave
            back; None where none are made.
    """

    seq: int | None
    block_size: int
    blocks: list[ResidentBlock]
    copied_bytes: int | None = None


class Flushed(Struct, frozen=True, kw_only=True):
    """Say whether the cache is empty now, and what was dropped and kept.

    Blocks that an engine does not count are None.
    """

    flushed: bool
    dropped: int | None = None
    referenced: int | None = None


class Kept(Struct, frozen=True, kw_only=True):
    """Name a block that was left alone, and why."""

    hash: int
    reason: Reason


class Evicted(Struct, frozen=True, kw_only=True):
    """List the blocks dropped, and those named that were not."""

    evicted: list[int]
    kept: list[Kept]


class Retained(Struct, frozen=True, kw_only=True):
    """Say how much is retained now.

    Args:
        retained: Blocks named that are retained from now on.
        named: Blocks named.
        total: Blocks retained by all requests together.
        cap: Most blocks that may be retained.
    """

    retained: int
    named: int
    total: int
    cap: int


class Changed(Struct, frozen=True, kw_only=True):
    """Count the blocks that a verb changed, of those named."""

    changed: int
    named: int


class PolicyState(Struct, frozen=True, kw_only=True):
    """Name the block eviction policy in force, and those to be had."""

    name: str
    options: dict[str, object]
    available: list[str]


class BudgetState(Struct, frozen=True, kw_only=True):
    """Hold the token budget that new requests get when they ask for none.

    The fields are those of `BudgetRequest`; None where the method has no such thing.
    """

    method: str
    tokens: int | None = None
    share: float | None = None
    sinks: int | None = None
    recent: int | None = None
    alpha: float | None = None
    partial: float | None = None
    host_tokens: int | None = None
    victims: str | None = None
    host_bytes: int | None = None


class KVControl(Protocol):
    """Drive the cache of one backend.

    Every method raises `ClientError` when the engine refuses, with the reason, and
    over HTTP `BackendUnavailable` and `ProtocolMismatch` besides. A verb that
    `capabilities` denies is refused with status 501 and the same reason.
    """

    async def capabilities(self, request: Request) -> Capabilities:
        """Say what works here; asks nothing of the cache."""
        ...

    async def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """List all resident blocks with a sequence barrier; changes nothing."""
        ...

    async def flush(self, request: Request) -> Flushed:
        """Drop everything that no request uses and that is not retained."""
        ...

    async def evict(self, request: BlocksRequest) -> Evicted:
        """Drop the named blocks, suffix first; those in use stay."""
        ...

    async def retain(self, request: RetainRequest) -> Retained:
        """Keep resident blocks from eviction, head first, up to the cap."""
        ...

    async def release(self, request: BlocksRequest) -> Changed:
        """Retain the named blocks no longer."""
        ...

    async def demote(self, request: BlocksRequest) -> Changed:
        """Make the named blocks the next victims."""
        ...

    async def offload(self, request: BlocksRequest) -> Changed:
        """Move unreferenced blocks to host memory."""
        ...

    async def restore(self, request: RestoreRequest) -> Changed:
        """Move blocks back from host memory, into the cache or a running request."""
        ...

    async def policy(self, request: PolicyRequest) -> PolicyState:
        """Read or change the block eviction policy; residents stay."""
        ...

    async def budget(self, request: BudgetRequest) -> BudgetState:
        """Read or change the default token budget of new requests."""
        ...


class Shape(NamedTuple):
    """Pair a verb's request with its answer, and say if it only reads."""

    request: type[Request]
    answer: type[Struct]
    reads: bool = False


SHAPES: Mapping[str, Shape] = {
    "snapshot": Shape(SnapshotRequest, Snapshot, reads=True),
    "flush": Shape(Request, Flushed),
    "evict": Shape(BlocksRequest, Evicted),
    "retain": Shape(RetainRequest, Retained),
    "release": Shape(BlocksRequest, Changed),
    "demote": Shape(BlocksRequest, Changed),
    "offload": Shape(BlocksRequest, Changed),
    "restore": Shape(RestoreRequest, Changed),
    "policy": Shape(PolicyRequest, PolicyState, reads=True),
    "budget": Shape(BudgetRequest, BudgetState, reads=True),
    "capabilities": Shape(Request, Capabilities, reads=True),
}
"""What may be asked. *reads*: a request without parameters changes nothing."""

VERBS = tuple(verb for verb in SHAPES if verb != "capabilities")
"""The verbs that a backend answers for in `Capabilities`."""


def shape_of(verb: str) -> Shape:
    """Return the shape of *verb*.

    Raises:
        ClientError: 404, there is no such verb.
    """
    shape = SHAPES.get(verb)
    if shape is None:
        raise ClientError(404, "kv_verb_unknown", explain_unknown("verb", verb, SHAPES))
    return shape


def decode_request(verb: str, body: bytes) -> Request:
    """Read the JSON *body* of a verb's request; an empty one has no parameters.

    Raises:
        ClientError: 404 or 400, with the field and what is allowed.
    """
    kind = shape_of(verb).request
    try:
        return msgspec_json.decode(body or b"{}", type=kind)
    except (ValidationError, RecursionError) as error:
        fields = ", ".join(kind.__struct_fields__) or "none"
        raise _invalid(verb, f"{error} (fields of {verb}: {fields})") from error
    except ValueError as error:
        raise _invalid(verb, f"the body is not JSON: {error}") from error


async def perform(control: KVControl, verb: str, request: Request) -> Struct:
    """Ask *control* for *verb*; *request* has the verb's type."""
    return cast(Struct, await getattr(control, verb)(request))


def unsupported(verb: str, reason: str) -> ClientError:
    """Return the refusal of a verb that this backend does not have."""
    return ClientError(
        501, "kv_verb_unsupported", f"{verb} is not to be had here: {reason}"
    )


def _invalid(verb: str, message: str) -> ClientError:
    return ClientError(400, "kv_request_invalid", f"kv {verb}: {message}")
