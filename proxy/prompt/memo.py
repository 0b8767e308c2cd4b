"""Tokens of the pieces of text that were tokenized before."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from sys import getsizeof
from threading import Lock

MAX_BYTES = 64 << 20
_ENTRY_BYTES = 200
"""Measured of CPython 3.11: the entry of an ordered dictionary and its tuple."""


class TokenMemo:
    """Remember tokens by the text they stand for, within a byte cap; oldest use goes.

    Texts are compared in full, so a wrong answer is impossible and no hash can be
    forged. Safe from several threads: one lock a prompt and direction.

    Args:
        max_bytes: Bound on texts, tokens and what it costs to keep them.

    Attributes:
        num_bytes: Held now.
        num_found: Tokens that were found here.
        num_stored: Tokens that had to be made.
    """

    __slots__ = (
        "_known",
        "_lock",
        "max_bytes",
        "num_bytes",
        "num_found",
        "num_stored",
    )

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._known: OrderedDict[tuple[int, str], array[int]] = OrderedDict()
        self._lock = Lock()
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_found = 0
        self.num_stored = 0

    def __repr__(self) -> str:
        return f"<TokenMemo [{len(self._known)} pieces, {self.num_bytes} bytes]>"

    def find(self, owner: int, texts: Iterable[str]) -> list["array[int] | None"]:
        """Return what is known of each text, None for the others. O(texts).

        Args:
            owner: Number of the tokenizer.
            texts: Pieces that it tokenizes independently of their surroundings.
        """
        known, found = self._known, []
        with self._lock:
            for text in texts:
                key = (owner, text)
                tokens = known.get(key)
                if tokens is not None:
                    known.move_to_end(key)
                    self.num_found += len(tokens)
                found.append(tokens)
        return found

    def store(
        self, owner: int, texts: Sequence[str], tokens: Sequence["array[int]"]
    ) -> None:
        """Remember the tokens of *texts*; those above a quarter of the cap go."""
        with self._lock:
            for text, made in zip(texts, tokens, strict=True):
                self.num_stored += len(made)
                self._store((owner, text), made)
            while self.num_bytes > self.max_bytes:
                key, oldest = self._known.popitem(last=False)
                self.num_bytes -= _weight(key[1], oldest)

    def _store(self, key: tuple[int, str], made: "array[int]") -> None:
        weight = _weight(key[1], made)
        if key in self._known or weight > self.max_bytes // 4:
            return
        self._known[key] = made
        self.num_bytes += weight


def _weight(text: str, tokens: "array[int]") -> int:
    return getsizeof(text) + getsizeof(tokens) + _ENTRY_BYTES
