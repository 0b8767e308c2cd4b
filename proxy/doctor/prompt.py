"""The prompts that the doctor sends: random token ids that mean nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from warmroute.adapters.base import Endpoint
from warmroute.policies.errors import ProtocolMismatch

NUM_BLOCKS = 3
ASSUMED_BLOCK_SIZE = 16
MAX_BLOCK_SIZE = 1024

_LOWEST_ID, _HIGHEST_ID = 10, 250


@dataclass(frozen=True, slots=True)
class Reply:
    """Hold what an engine said of one prompt.

    Args:
        prompt_tokens: Its length as the engine counts it; None if not told.
        cached_tokens: How many were cached; None if not told.
    """

    prompt_tokens: int | None
    cached_tokens: int | None


def fresh_prompt(block_size: int | None, max_model_len: int | None) -> list[int]:
    """Return three blocks and a token that nobody has sent before.

    One token of a prompt is always computed, so that three blocks can hit. Fewer
    blocks where the model takes no more; without a whole one the list is empty.

    Args:
        block_size: Tokens a block; None assumes 16.
        max_model_len: Longest sequence of the model, or None.
    """
    size = min(block_size or ASSUMED_BLOCK_SIZE, MAX_BLOCK_SIZE)
    num_blocks = NUM_BLOCKS
    if max_model_len is not None:
        num_blocks = min(num_blocks, (max_model_len - 2) // size)
    if num_blocks < 1:
        return []
    ids = range(num_blocks * size + 1)
    return [random.randrange(_LOWEST_ID, _HIGHEST_ID) for _ in ids]


async def send(endpoint: Endpoint, model: str | None, prompt: Sequence[int]) -> Reply:
    """Have the engine read a prompt and generate one token.

    Raises:
        BackendUnavailable: There is no answer in time.
        ProtocolMismatch: The engine refuses, or answers something else.
    """
    body: dict[str, object] = {"prompt": [*prompt], "max_tokens": 1, "temperature": 0}
    if model is not None:
        body["model"] = model
    path = "/v1/completions"
    status, answer = await endpoint.post(path, body)
    if status != 200:
        raise ProtocolMismatch(
            f"{endpoint.url}{path} answered a prompt of {len(prompt)} token ids with "
            f"HTTP {status}"
        )
    usage = endpoint.decode_object(path, answer).get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return Reply(
        _count(usage.get("prompt_tokens")), _count(details.get("cached_tokens"))
    )


def _count(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number else None  # type: ignore[return-value]
