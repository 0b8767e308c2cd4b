"""A prompt's text made unreadable, with its form left to see."""

import re
from typing import Final

# Each text can be read in one way only: in several, the search would take time that
# doubles every few digits.
_HEX: Final = re.compile(
    r"\b(?=[0-9a-fA-F-]*[0-9])(?=[0-9a-fA-F-]*[a-fA-F])"
    r"(?:[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|[0-9a-fA-F]{4,7}(?:-[0-9a-fA-F]{4,})+)\b"
)


def mask(text: bytes) -> str:
    """Return *text* with digits as 9, letters as x, and long hex numbers as h.

    Punctuation and spaces stay; everything beyond ASCII is a letter.
    """
    decoded = text.decode("utf-8", "replace")
    hidden = _HEX.sub(lambda found: re.sub(r"[0-9a-fA-F]", "\x00", found[0]), decoded)
    return "".join(map(_masked, hidden))


def _masked(one: str) -> str:
    if one == "\x00":
        return "h"
    if one.isdecimal() and one.isascii():
        return "9"
    if one.isalpha() and one.isascii():
        return "X" if one.isupper() else "x"
    if one.isspace() or one == "\ufffd" or not one.isprintable():
        return " "
    return one if one.isascii() else "x"
