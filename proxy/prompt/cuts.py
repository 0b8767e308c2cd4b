"""Where a text can be cut so that its tokens are those of the parts, joined.

A tokenizer first looks for its added tokens in the raw text, the longest of the
leftmost; what stands between them is normalised, split and merged by itself. So a text
may be cut in front of an added token, unless that token swallows the spaces before it
(``lstrip``), is one only between other characters (``single_word``), or is looked for
after normalisation (``normalized``).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer


class SafeCuts:
    """Cut texts in front of a tokenizer's added tokens.

    Args:
        tokenizer: Whose added tokens count.
    """

    __slots__ = ("_added", "_safe")

    def __init__(self, tokenizer: Tokenizer) -> None:
        raw = [
            token
            for token in tokenizer.get_added_tokens_decoder().values()
            if token.content and not token.normalized
        ]
        self._safe = frozenset(one.content for one in raw if _is_safe(one))
        self._added = _compile(one.content for one in raw) if self._safe else None

    def __repr__(self) -> str:
        return f"<SafeCuts [{len(self._safe)} tokens]>"

    def split(self, text: str) -> list[str]:
        """Return the parts of *text*, none of them empty. O(characters)."""
        if self._added is None:
            return [text] if text else []
        parts, start = [], 0
        for match in self._added.finditer(text):
            at = match.start()
            if at > start and match[0] in self._safe:
                parts.append(text[start:at])
                start = at
        if start < len(text):
            parts.append(text[start:])
        return parts


def _is_safe(token: AddedToken) -> bool:
    # A token of the kind that swallows spaces behind it may take the first of these.
    starts_with_space = token.content[0].isspace()
    return not (token.lstrip or token.single_word or starts_with_space)


def _compile(contents: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the longest of the leftmost of *contents*.

    A tree of alternatives: a plain list of them would be tried one by one.
    """
    tree: dict[str, Any] = {}
    for content in contents:
        node = tree
        for letter in content:
            node = node.setdefault(letter, {})
        node[""] = {}
    return re.compile(_pattern(tree))


def _pattern(tree: Mapping[str, Any]) -> str:
    # Depth is that of the longest token: added tokens are short.
    options = [
        re.escape(letter) + _pattern(below) for letter, below in tree.items() if letter
    ]
    if not options:
        return ""
    if len(options) == 1 and "" not in tree:
        return options[0]
    return f"(?:{'|'.join(options)})" + ("?" if "" in tree else "")
