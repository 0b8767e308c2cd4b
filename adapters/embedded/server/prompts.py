"""The forms that the prompt of a text completion may take."""

from typing import Any

import msgspec

from warmroute.adapters.embedded.server.errors import BadField

MAX_PROMPTS = 128


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Return the prompts one by one: texts, or lists of token ids.

    Accepted are a text, a list of texts, a list of token ids, and a list of such
    lists; they cannot be mixed. O(tokens).

    Raises:
        BadField: It is none of these, or holds too many prompts or none.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadField("prompt", "must hold at least one text or token id")
    if isinstance(prompt[0], int):
        return _convert([prompt], list[list[int]], "token ids")
    if len(prompt) > MAX_PROMPTS:
        raise BadField(
            "prompt", f"holds {len(prompt)} prompts (allowed: {MAX_PROMPTS} or fewer)"
        )
    if isinstance(prompt[0], str):
        return _convert(prompt, list[str], "texts")
    return _convert(prompt, list[list[int]], "lists of token ids")


def _convert(prompt: list[Any], kind: Any, expected: str) -> list[str | list[int]]:
    try:
        found: list[str | list[int]] = msgspec.convert(prompt, kind)
    except msgspec.ValidationError as error:
        raise BadField(
            "prompt",
            "must be a text, a list of texts, a list of token ids, or a list of lists "
            f"of token ids; it begins as a list of {expected}, but: {error}",
        ) from error
    return found
