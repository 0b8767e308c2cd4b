"""A token budget in whole blocks: how many a running sequence may hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warmroute.policies.errors import ClientError
from warmroute.policies.registry import explain_unknown

METHODS = ("attention", "full", "sinks", "window")
"""What may be asked for; ``full`` is no budget."""

STREAMING_SINKS = 4
"""Sinks of ``sinks`` and ``attention`` when none are given."""

NUM_OPEN = 2
"""Newest blocks that stay always: the one being written, and the one before it."""

_ELSEWHERE = {
    "h2o": "it keeps tokens for each head; 'attention' is the nearest, in whole blocks",
    "infinigen": "nothing returns by itself; what host_bytes copies, 'restore' can",
}
_FIELDS = ("tokens", "share", "sinks")
_COPIES = "host_bytes"


@dataclass(frozen=True, slots=True)
class BlockBudget:
    """Say how many blocks a sequence holds while it is decoded, and which.

    The first blocks, which have the sinks, and the newest ones stay. This is what
    StreamingLLM (Xiao et al., 2024, section 3.2) keeps, in whole blocks, and with the
    positions that the tokens had.

    Args:
        method: ``sinks``, ``window``, which has no sinks, or ``attention``, which
            keeps the sinks and the newest, too, and else what receives most.
        tokens: Most tokens held, or None.
        share: The same as a share of the prompt, or None.
        sinks: First tokens that stay.
        host_bytes: Most bytes of copies of what all sequences gave back; None for no
            copies.
    """

    method: str
    tokens: int | None = None
    share: float | None = None
    sinks: int = 0
    host_bytes: int | None = None

    @property
    def is_scored(self) -> bool:
        """Whether attention chooses what goes."""
        return self.method == "attention"

    def num_first(self, block_size: int) -> int:
        """Return how many blocks at the head stay."""
        return -(-self.sinks // block_size)

    def num_held(self, num_prompt: int, block_size: int) -> int:
        """Return the most blocks held, the one being written included."""
        tokens = self.tokens
        if tokens is None:
            tokens = math.ceil((self.share or 0.0) * num_prompt)
        return max(tokens // block_size, self.num_first(block_size) + NUM_OPEN)


def to_be_chosen_from(
    blocks: Sequence[object], null: object, first: int, needed: int
) -> list[int]:
    """Return which of a sequence's blocks may be given back, the oldest first."""
    return [at for at in range(first, needed - NUM_OPEN) if blocks[at] is not null]


def read_budget(fields: Mapping[str, object], block_size: int) -> BlockBudget | None:
    """Return the budget that a call asks for; None for ``full``.

    Raises:
        ClientError: 400 ``invalid_kv_budget``, with the field and what is allowed.
    """
    method = str(fields["method"])
    if method not in METHODS:
        raise refused_budget("method", _why_not(method))
    allowed = {
        "full": (),
        "window": (*_FIELDS[:2], _COPIES),
    }.get(method, (*_FIELDS, _COPIES))
    for name, value in fields.items():
        if value is not None and name != "method" and name not in allowed:
            raise refused_budget(
                name,
                f"{value} with method {method!r} "
                f"(allowed: {', '.join(allowed) or 'nothing'})",
            )
    if method == "full":
        return None
    return _checked(method, fields, block_size)


def _checked(method: str, fields: Mapping[str, object], size: int) -> BlockBudget:
    tokens, share, sinks = (fields.get(name) for name in _FIELDS)
    host_bytes = fields.get(_COPIES)
    assert isinstance(host_bytes, int | None)
    assert isinstance(tokens, int | None)
    assert isinstance(sinks, int | None)
    assert isinstance(share, int | float | None)
    if (tokens is None) == (share is None):
        given = "neither is" if tokens is None else "both are"
        raise refused_budget("tokens", f"give either tokens or share; {given} given")
    if sinks is None:
        sinks = 0 if method == "window" else STREAMING_SINKS
    budget = BlockBudget(method, tokens, share, sinks, host_bytes)
    least = (budget.num_first(size) + NUM_OPEN) * size
    if tokens is not None and tokens < least:
        raise refused_budget(
            "tokens",
            f"{tokens} (allowed here, in blocks of {size}: {least} or more)",
        )
    return budget


def _why_not(method: str) -> str:
    reason = _ELSEWHERE.get(method)
    if reason is None:
        return explain_unknown("method", method, METHODS)
    return f"{method!r}: {reason} (allowed: {', '.join(METHODS)})"


def refused_budget(field: str, message: str) -> ClientError:
    """Return the refusal of a budget, with the field that is wrong."""
    return ClientError(400, "invalid_kv_budget", f"budget.{field}: {message}")
