"""The fields that chat and text completions share."""

from dataclasses import fields as dataclass_fields
from typing import Annotated, Any

import msgspec

from warmroute.adapters.embedded.budget.options import BudgetOptions
from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.server.body import convert_fields
from warmroute.adapters.embedded.server.errors import BadField
from warmroute.policies.registry import explain_unknown

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_BUDGET_FIELDS = tuple(field.name for field in dataclass_fields(BudgetOptions))


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the text.

    Args:
        include_usage: End the stream with a chunk that holds the usage.
        continuous_usage_stats: Put the usage so far into every chunk (vLLM).
        include_obfuscation: Borne, as padding against eavesdroppers is not made.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class SamplingFields(msgspec.Struct, kw_only=True):
    """Types of the fields; the engine judges their ranges.

    Where vLLM and OpenAI differ, the meaning is vLLM's: ``priority`` is lower
    first, ``ignore_eos``, ``min_tokens``, ``cache_salt`` and ``return_token_ids``
    are its additions. ``kv_budget`` is ours.
    """

    model: str | None = None
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    seed: Int64 | None = None
    stop: str | list[str] = msgspec.field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    priority: Int64 = 0
    cache_salt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    return_token_ids: bool = False
    kv_budget: dict[str, Any] | None = None

    def to_request(
        self,
        request_id: str,
        prompt_ids: list[int],
        max_tokens: int | None,
        logprobs: int | None,
        turn: int = 1,
    ) -> GenerationRequest:
        """Return what the engine is asked for one prompt.

        Raises:
            BadField: The token budget cannot be used.
        """
        return GenerationRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            n=self.n,
            priority=self.priority,
            cache_salt=self.cache_salt,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            min_tokens=self.min_tokens,
            budget=read_budget(self.kv_budget),
            turn=turn,
        )


def read_budget(fields: dict[str, Any] | None) -> BudgetOptions | None:
    """Return the token budget in the body, None when there is none.

    Raises:
        ClientError: A field is unknown, missing, of another type, or out of range.
    """
    if fields is None:
        return None
    for name in fields:
        if name not in _BUDGET_FIELDS:
            name = name[:64]
            raise BadField(
                f"kv_budget.{name}",
                explain_unknown("field", name, _BUDGET_FIELDS),
                "unknown_parameter",
            )
    given = {name: value for name, value in fields.items() if value is not None}
    return convert_fields(given, BudgetOptions, "kv_budget")
