"""The token ids of prefixes that may be copied to another backend."""

from array import array
from collections import OrderedDict

MAX_TOKENS = 1_048_576


class PrefixTokens:
    """Remember the token ids of shared prefixes, a million in all; kept nowhere else.

    Only what many conversations begin with is here, so that one may be computed on
    another engine.
    """

    __slots__ = ("_num_tokens", "_prompts")

    def __init__(self) -> None:
        self._prompts: OrderedDict[int, tuple[str, array[int]]] = OrderedDict()
        self._num_tokens = 0

    def __repr__(self) -> str:
        return f"<PrefixTokens [{self._num_tokens} of {len(self._prompts)} prefixes]>"

    def __contains__(self, tail: int) -> bool:
        return tail in self._prompts

    def keep(self, tail: int, model: str, tokens: "array[int]") -> None:
        """Remember the tokens of the prefix that ends in a block; O(its tokens)."""
        if tail in self._prompts or len(tokens) > MAX_TOKENS // 4:
            return
        self._prompts[tail] = model, tokens
        self._num_tokens += len(tokens)
        while self._num_tokens > MAX_TOKENS:
            _, (_, oldest) = self._prompts.popitem(last=False)
            self._num_tokens -= len(oldest)

    def find(self, tail: int) -> tuple[str, "array[int]"] | None:
        """Return the model and the token ids, if they are known."""
        found = self._prompts.get(tail)
        if found is not None:
            self._prompts.move_to_end(tail)
        return found
