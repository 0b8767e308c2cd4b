"""The token ids of prefixes that may be copied to another backend."""

from array import array
from collections import OrderedDict

from warmroute.policies.conducting.item import Shared, Turn
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.prompt.names import Cards
from warmroute.proxy.prompt.roots import event_root

MAX_TOKENS = 1_048_576
_MANY_USES = 4


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

    def learn(
        self, turn: Turn, prompt: Prompt, shared: Shared | None, models: Cards
    ) -> None:
        """Remember the prefix of a prompt, once four conversations began with it.

        One under a salt or an adapter cannot be asked for by its tokens alone.
        """
        if turn.before is None or turn.before in self._prompts:
            return
        if shared is None or shared.uses < _MANY_USES or prompt.model is None:
            return
        piece = prompt.pieces[0]
        if piece.tokens is not None and piece.root == event_root(models, None, None):
            tokens = piece.tokens[: turn.seen_blocks * turn.block_tokens]
            self.keep(turn.before, prompt.model, tokens)

    def find(self, tail: int) -> tuple[str, "array[int]"] | None:
        """Return the model and the token ids, if they are known."""
        found = self._prompts.get(tail)
        if found is not None:
            self._prompts.move_to_end(tail)
        return found
