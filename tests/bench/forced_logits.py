"""What forces the answers of a vLLM, in the process that runs its model."""

from collections.abc import Callable
from typing import Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Forced(AdapterLogitsProcessor):
    """Let the next token of an answer be the one that was given."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        forced = (params.extra_args or {}).get("forced")
        return None if forced is None else only(forced)


def only(forced: list[int]) -> Callable[[list[int], Any], Any]:
    def process(said: list[int], logits: Any) -> Any:
        logits.fill_(float("-inf"))
        logits[forced[min(len(said), len(forced) - 1)]] = 0.0
        return logits

    return process
