"""Which requests of the engine are meant by the name that its client knows."""

import re

_INSIDE = re.compile(r"(?:\d+_)?(?P<outside>.+?)(?:-[0-9a-f]{8})?")
"""A choice's number in front, and eight random digits behind: vLLM's own additions."""

_OUTSIDE = re.compile(r"(?:chat)?cmpl-(?P<given>.+)")
_OF_SEVERAL = re.compile(r"(cmpl-.+)-\d+")
"""A completion with the number of its prompt, of which there may be several."""


def is_named(inside: str, name: str) -> bool:
    """Whether a request that the engine calls *inside* is one of those named.

    A name is the engine's own, the ``id`` of an answer, or the ``X-Request-Id`` that
    came with the request; the last two may stand for several choices or prompts.
    """
    return name in (inside, *_names(inside))


def _names(inside: str) -> set[str]:
    found = _INSIDE.fullmatch(inside)
    names = {found["outside"]} if found else set()
    names |= {one[1] for one in map(_OF_SEVERAL.fullmatch, names) if one}
    return names | {one["given"] for one in map(_OUTSIDE.fullmatch, names) if one}
