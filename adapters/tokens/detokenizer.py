"""Token ids to text, one token at a time and never a broken character."""

import codecs
import re
from collections.abc import Iterable, Sequence
from functools import cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """The bytes that each token stands for.

    Args:
        contents: By token id, as the bytes of the text; empty for unused ids.
        special: Ids that are left out of text for people.
        strips_space: Whether the first space of a text is not part of it.
    """

    __slots__ = ("_contents", "special", "strips_space")

    def __init__(
        self,
        contents: Sequence[bytes],
        special: Iterable[int] = (),
        strips_space: bool = False,
    ) -> None:
        self._contents = contents
        self.special = frozenset(special)
        self.strips_space = strips_space

    def of(self, token_id: int) -> bytes:
        """Return the bytes of one token; none for an id outside the vocabulary."""
        if 0 <= token_id < len(self._contents):
            return self._contents[token_id]
        return b""

    def join(self, token_ids: Iterable[int], skip_special: bool) -> str:
        """Return the text of *token_ids*; stray bytes become U+FFFD."""
        stream = Detokenizer(self, skip_special)
        return "".join(map(stream.push, token_ids)) + stream.flush()


class Detokenizer:
    """The text of a growing answer, in pieces that are whole characters.

    Bytes of a character that is not complete yet wait for the next tokens; bytes
    that can never complete one come out as U+FFFD at once. The pieces together
    are what `TokenBytes.join` gives for all the ids.

    Args:
        source: The vocabulary.
        skip_special: Whether special tokens are left out.
    """

    __slots__ = ("_at_start", "_decoder", "_skipped", "_source")

    def __init__(self, source: TokenBytes, skip_special: bool = True) -> None:
        self._source = source
        self._skipped = source.special if skip_special else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = source.strips_space

    def push(self, token_id: int) -> str:
        """Take the next token, return the text that is certain now."""
        if token_id in self._skipped:
            return ""
        data = self._source.of(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)


def byte_level(token: str) -> bytes:
    """Return the bytes behind a token of byte-level BPE (GPT-2)."""
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[letter] for letter in token])
    except KeyError:  # an added token, written as it is
        return token.encode()


def sentencepiece(token: str) -> bytes:
    """Return the bytes behind a SentencePiece token with byte fallback."""
    match = _BYTE_TOKEN.fullmatch(token)
    if match:
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode()


@cache
def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's letters for the 256 bytes: printable ones stand for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + at): byte for at, byte in enumerate(others)}
