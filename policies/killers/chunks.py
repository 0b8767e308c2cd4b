"""Text in chunks that are cut by what it says, not by where that stands.

Fixed blocks fall out of step behind the first inserted byte. Cut at its own marks
(lines, sentences, JSON values, and now and then between two words), a text that goes on
as before is in the same chunks again soon.
"""

import re
from itertools import islice
from typing import Final

from xxhash import xxh3_64_intdigest

MAX_TEXT_BYTES: Final = 32_768
MAX_CHUNKS: Final = 1024
MAX_CHUNK_BYTES: Final = 256

# Bytes from 0xF5 on are no UTF-8: the tags between the fields of canonical text. The
# pattern begins with one set of bytes, so that the search skips all others.
_MARKS: Final = re.compile(
    rb"[\n.!?;:{}\] \x82\xf5-\xff]"
    rb"(?:(?<=[\n\xf5-\xff])|(?<=[.!?;:]) |(?<=\{)\"|(?<=[}\]]),"
    rb"|(?<= )(?=[w1])|(?<=\xe3\x80\x82))"
)


class Chunks:
    """The chunks of one text, from its start.

    Attributes:
        text: The text, at most 32 KiB of it.
        ends: Offset behind each chunk, at most 1,024.
        hashes: Of each by itself.
        chains: Of each with all in front of it.
    """

    __slots__ = ("chains", "ends", "hashes", "text")

    def __init__(self, text: bytes, seed: int) -> None:
        self.text = text[:MAX_TEXT_BYTES]
        self.ends = _ends(self.text)
        hashes: list[int] = []
        chains: list[int] = []
        start, chain = 0, seed
        for end in self.ends:
            chunk = self.text[start:end]
            hashes.append(xxh3_64_intdigest(chunk, seed))
            chain = xxh3_64_intdigest(chunk, chain)
            chains.append(chain)
            start = end
        self.hashes, self.chains = hashes, chains

    def __repr__(self) -> str:
        return f"<Chunks [{len(self.ends)} of {len(self.text)} bytes]>"

    def start(self, at: int) -> int:
        """Return the offset of chunk *at*."""
        return self.ends[at - 1] if at else 0


def _ends(text: bytes) -> list[int]:
    marks = [mark.end() for mark in islice(_MARKS.finditer(text), MAX_CHUNKS)]
    ends: list[int] = []
    last = 0
    for end in (*marks, len(text)):
        while end - last > MAX_CHUNK_BYTES:
            last += MAX_CHUNK_BYTES
            ends.append(last)
        if end > last:
            ends.append(end)
            last = end
    return ends[:MAX_CHUNKS]
