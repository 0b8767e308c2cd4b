"""What a cache can be asked for: one typed request a verb of KV control.

Every request is bounded, so that nobody can make an engine hash or list without end.
"""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from warmroute.policies.errors import ClientError

MAX_BLOCKS = 65_536
"""Most block hashes that one request may name."""

MAX_TOKENS = 1_048_576
"""Most token ids that one request may name its blocks by."""

MAX_PROMPT_CHARS = 4_194_304
MAX_MESSAGES = 16_384
MAX_TOOLS = 1_024
MAX_SALT_CHARS = 4_096
MAX_TTL_S = 86_400
"""Longest time that a block may be retained, in seconds: one day."""

MAX_HASH = 2**64 - 1
MIN_HASH = -(2**63)

TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Request(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ask for something that takes no parameters; the base of those that do."""


class SnapshotRequest(Request, frozen=True):
    """Ask what is resident.

    Args:
        token_ids: Whether each block comes with its tokens and extra keys.
    """

    token_ids: bool = False


class BlocksRequest(Request, frozen=True):
    """Name the blocks to act on, in exactly one of these ways.

    All but *hashes* name the full blocks of one sequence, from its head on.

    Args:
        hashes: The engine's block hashes, in any order.
        token_ids: Token ids of a prompt.
        prompt: Text of a prompt, as ``/v1/completions`` takes it.
        messages: A chat, as ``/v1/chat/completions`` takes it.
        tools: Tools of the chat, which its template renders.
        add_generation_prompt: Whether the chat ends with the head of an answer, as
            one that is sent does; false to name the beginning of longer chats.
        cache_salt: Salt of the prompt or chat.
        skip_blocks: Blocks at the head of the sequence that are not meant.
    """

    hashes: Annotated[list[int], Meta(min_length=1, max_length=MAX_BLOCKS)] | None = (
        None
    )
    token_ids: (
        Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_TOKENS)] | None
    ) = None
    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)] | None = (
        None
    )
    messages: (
        Annotated[list[dict[str, object]], Meta(min_length=1, max_length=MAX_MESSAGES)]
        | None
    ) = None
    tools: Annotated[list[dict[str, object]], Meta(max_length=MAX_TOOLS)] | None = None
    add_generation_prompt: bool = True
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = (
        None
    )
    skip_blocks: Count = 0

    ways: ClassVar[tuple[str, ...]] = ("hashes", "token_ids", "prompt", "messages")
    """Names of the fields that name blocks."""

    def __post_init__(self) -> None:
        if sum(getattr(self, way) is not None for way in self.ways) != 1:
            raise ValueError(
                "blocks must be named in exactly one way "
                f"(allowed: {', '.join(self.ways)})"
            )
        if self.tools is not None and self.messages is None:
            raise ValueError("tools belong to messages, which are missing")
        if self.hashes is not None:
            self._check_hashes(self.hashes)

    def _check_hashes(self, hashes: list[int]) -> None:
        if self.cache_salt is not None or self.skip_blocks:
            raise ValueError(
                "hashes name their blocks fully; leave out cache_salt and skip_blocks"
            )
        wrong = [one for one in hashes if not MIN_HASH <= one <= MAX_HASH]
        if wrong:
            raise ValueError(f"block hash {wrong[0]} does not fit 64 bits")


class RetainRequest(BlocksRequest, frozen=True, kw_only=True):
    """Ask to keep blocks resident for *ttl_s* seconds from now."""

    ttl_s: Annotated[float, Meta(gt=0, le=MAX_TTL_S)]


class RestoreRequest(BlocksRequest, frozen=True, kw_only=True):
    """Ask to bring blocks back from host memory; those of a running request, too.

    Args:
        request_id: A running request, named as its answer is. Meant are the blocks
            that it gave back under a token budget.
        hold_tokens: Most tokens that the request holds from now on; all if None.
    """

    request_id: Name | None = None
    hold_tokens: Annotated[int, Meta(ge=1)] | None = None

    ways: ClassVar[tuple[str, ...]] = (*BlocksRequest.ways, "request_id")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.request_id is None:
            if self.hold_tokens is not None:
                raise ValueError("hold_tokens belong to a request; give its request_id")
        elif self.cache_salt is not None or self.skip_blocks:
            raise ValueError(
                "request_id names its blocks fully; leave out cache_salt and "
                "skip_blocks"
            )


class PolicyRequest(Request, frozen=True):
    """Ask which block eviction policy rules; with a name, put that one in force."""

    name: Name | None = None
    options: dict[str, object] | None = None

    def __post_init__(self) -> None:
        if self.options is not None and self.name is None:
            raise ValueError("options belong to a policy; give its name, too")


class BudgetRequest(Request, frozen=True):
    """Ask for the default token budget; with a method, set it for new requests.

    Args:
        method: Token eviction method; ``full`` keeps every token.
        tokens: Budget in tokens a sequence; excludes *share*.
        share: Budget as a share of the prompt, 0 to 1.
        sinks: First tokens that are always kept.
        recent: Newest tokens that are always kept.
        alpha: How far below the best guess ``infinigen`` fetches.
        partial: Share of each head that ``infinigen`` guesses with.
        host_tokens: Most tokens that ``infinigen`` keeps in host memory.
        victims: Which one leaves a full host memory.
        host_bytes: Most bytes of host memory for copies of what running requests
            give back, from which ``restore`` brings it back; no copies if None.
    """

    method: Name | None = None
    tokens: Annotated[int, Meta(ge=1)] | None = None
    share: Share | None = None
    sinks: Count | None = None
    recent: Count | None = None
    alpha: Annotated[float, Meta(ge=0)] | None = None
    partial: Share | None = None
    host_tokens: Annotated[int, Meta(ge=1)] | None = None
    victims: Name | None = None
    host_bytes: Annotated[int, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        given = (getattr(self, field) for field in self.__struct_fields__)
        if self.method is None and any(one is not None for one in given):
            raise ValueError("a budget needs its method")
        if self.tokens is not None and self.share is not None:
            raise ValueError("tokens and share are two budgets; give one")


def check_named(num_tokens: int, num_blocks: int) -> None:
    """Return when a prompt stands for no more blocks than one call may name.

    Raises:
        ClientError: 400, with the limit.
    """
    if num_blocks > MAX_BLOCKS:
        raise ClientError(
            400,
            "kv_request_invalid",
            f"{num_tokens} tokens are {num_blocks} blocks (allowed: {MAX_BLOCKS} "
            f"blocks in a call); name fewer",
        )
