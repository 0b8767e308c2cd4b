"""One tokenizer with the memo: only what is new in a text is tokenized."""

from array import array
from collections.abc import Sequence
from itertools import count

from tokenizers import Tokenizer

from warmroute.adapters.tokens.errors import NotExact
from warmroute.proxy.prompt.cuts import SafeCuts
from warmroute.proxy.prompt.memo import TokenMemo

_numbers = count(1)
_NOTHING = array("I")


class Draft:
    """Texts on their way to tokens.

    Attributes:
        missing_chars: Of what is not known yet.
    """

    __slots__ = ("_parts", "_spans", "found", "missing", "missing_chars")

    def __init__(
        self,
        spans: list[tuple[int, int, bool]],
        parts: list[str],
        found: list["array[int] | None"],
    ) -> None:
        self._spans = spans
        self._parts = parts
        self.found = found
        self.missing = [at for at, known in enumerate(found) if known is None]
        self.missing_chars = sum(len(parts[at]) for at in self.missing)

    def __repr__(self) -> str:
        return f"<Draft [{len(self._parts)} parts, {len(self.missing)} missing]>"

    @property
    def missing_texts(self) -> list[str]:
        """The parts that have to be tokenized, each once."""
        return list(dict.fromkeys(self._parts[at] for at in self.missing))

    def fill(self, made: dict[str, "array[int]"]) -> None:
        """Put in what was missing."""
        for at in self.missing:
            self.found[at] = made[self._parts[at]]

    def join(self, front: "array[int]", back: "array[int]") -> tuple["array[int]", ...]:
        """Return the tokens of each text, those with a frame between its ends."""
        joined = []
        for start, end, is_framed in self._spans:
            tokens = array("I", front if is_framed else ())
            for known in self.found[start:end]:
                assert known is not None  # `fill` was called
                tokens += known
            if is_framed:
                tokens += back
            joined.append(tokens)
        return tuple(joined)


class Encoder:
    """Turn texts into tokens, equal to those of the whole text at once.

    Args:
        tokenizer: Not changed from here on; used from several threads.
        memo: Shared with other tokenizers.
    """

    __slots__ = ("_cuts", "_frame", "_memo", "_number", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, memo: TokenMemo) -> None:
        self._tokenizer = tokenizer
        self._memo = memo
        self._number = next(_numbers)
        self._cuts = SafeCuts(tokenizer)
        self._frame = _find_frame(tokenizer)

    def __repr__(self) -> str:
        return f"<Encoder {self._number} {self._cuts!r}>"

    def draft(self, texts: Sequence[tuple[str, bool]]) -> Draft:
        """Look up what is known of *texts*. O(characters), a fraction of tokenizing.

        Args:
            texts: Each with the wish for the tokens that the model wants around it.

        Raises:
            NotExact: It is not known which tokens these are.
        """
        if self._frame is None and any(is_framed for _, is_framed in texts):
            raise NotExact("special tokens that are not just put around a text")
        spans: list[tuple[int, int, bool]] = []
        parts: list[str] = []
        for text, is_framed in texts:
            start = len(parts)
            parts += self._cuts.split(text)
            spans.append((start, len(parts), is_framed))
        return Draft(spans, parts, self._memo.find(self._number, parts))

    def complete(self, draft: Draft) -> tuple["array[int]", ...]:
        """Tokenize what is missing, without the GIL, and return all tokens."""
        if draft.missing:
            texts = draft.missing_texts
            made = [
                array("I", one.ids)
                for one in self._tokenizer.encode_batch_fast(
                    texts, add_special_tokens=False
                )
            ]
            self._memo.store(self._number, texts, made)
            draft.fill(dict(zip(texts, made, strict=True)))
        return draft.join(*self._frame or (_NOTHING, _NOTHING))

    def show(self, tokens: "array[int]") -> str:
        """Return the first of *tokens* for people: its number and its text."""
        if not tokens:
            return "missing"
        return f"{tokens[0]} {self._tokenizer.id_to_token(tokens[0])!r}"


def _find_frame(tokenizer: Tokenizer) -> tuple["array[int]", "array[int]"] | None:
    """Return the tokens that the model wants in front of a text and behind it."""
    probe = "a"
    bare = tokenizer.encode(probe, add_special_tokens=False).ids
    framed = tokenizer.encode(probe).ids
    for start in range(len(framed) - len(bare) + 1):
        end = start + len(bare)
        if framed[start:end] == bare:
            return array("I", framed[:start]), array("I", framed[end:])
    return None
