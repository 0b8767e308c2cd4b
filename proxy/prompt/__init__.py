"""What a request asks for: its prompts, in the grade that can be known."""

from warmroute.proxy.prompt.reader import (
    Piece,
    Prompt,
    PromptReader,
)

__all__ = [
    "Piece",
    "Prompt",
    "PromptReader",
]
