"""What a request asks for: its prompts, in the grade that can be known."""

from warmroute.proxy.prompt.prompt import Piece, Prompt
from warmroute.proxy.prompt.reader import PromptReader

__all__ = ["Piece", "Prompt", "PromptReader"]
