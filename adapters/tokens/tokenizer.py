"""A model's tokenizer together with its chat template."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from warmroute.adapters.tokens.chat_template import ChatTemplate, Message
from warmroute.adapters.tokens.detokenizer import (
    Detokenizer,
    TokenBytes,
    byte_level,
    sentencepiece,
)
from warmroute.adapters.tokens.errors import ModelError
from warmroute.adapters.tokens.files import DEFAULT, TokenizerFiles


class ChatTokenizer:
    """Text and conversations to token ids and back.

    Args:
        tokenizer: The vocabulary and its rules.
        template: How a conversation is written; None for a model without chats.
        eos_ids: Token ids that end an answer.

    Raises:
        ModelError: The tokenizer's decoder is of an unknown kind.
    """

    __slots__ = ("_tokenizer", "eos_ids", "template", "token_bytes")

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        eos_ids: tuple[int, ...],
    ) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self.eos_ids = eos_ids
        self.token_bytes = read_token_bytes(tokenizer)

    @classmethod
    def from_files(cls, files: TokenizerFiles, eos_ids: tuple[int, ...]) -> Self:
        """Take the tokenizer and the usual template of a model's files.

        Raises:
            ModelError: As the constructor, or the template is not valid.
        """
        source = files.templates.get(DEFAULT)
        template = None if source is None else ChatTemplate(source, files.named)
        return cls(files.tokenizer, template, eos_ids)

    def __repr__(self) -> str:
        chat = "chat" if self.template else "no chat"
        return f"<ChatTokenizer {self.vocab_size} tokens, {chat}>"

    @property
    def vocab_size(self) -> int:
        """Tokens known, the added ones included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Return the token ids of *text*.

        Args:
            text: Any text; special tokens written in it are recognised.
            add_special: Whether the tokens are added that the model wants around
                a text, such as its first token.
        """
        return self._tokenizer.encode(text, add_special_tokens=add_special).ids

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """Return the token ids of a conversation; *options* as in `render`.

        Raises:
            ModelError: As `render`.
        """
        return self.encode(self.render(messages, **options), add_special=False)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """Write a conversation as one text: see `ChatTemplate.render`.

        Raises:
            ModelError: The model has no template, or it refuses the messages.
        """
        if self.template is None:
            raise ModelError(
                "the model has no chat template; ask for a completion instead"
            )
        return self.template.render(
            messages, tools, add_generation_prompt, continue_final_message, **variables
        )

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Return the text of *ids*; bytes that are no character become U+FFFD."""
        return self.token_bytes.join(ids, skip_special)

    def stream(self, skip_special: bool = True) -> Detokenizer:
        """Return a detokenizer for one growing answer."""
        return Detokenizer(self.token_bytes, skip_special)

    def save(self, path: Path) -> None:
        """Write the vocabulary and its rules as a tokenizer.json."""
        self._tokenizer.save(str(path))

    def token(self, token_id: int) -> str:
        """Return one token as text, alone; a part of a character as U+FFFD."""
        return self.token_bytes.of(token_id).decode("utf-8", "replace")


def read_token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """Work out the bytes of every token from the tokenizer's decoder.

    Raises:
        ModelError: The decoder is neither byte-level nor SentencePiece's.
    """
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    steps = [step["type"] for step in decoder.get("decoders", [decoder]) if step]
    if "ByteLevel" in steps:
        to_bytes = byte_level
    elif "ByteFallback" in steps or "Metaspace" in steps:
        to_bytes = sentencepiece
    else:
        raise ModelError(
            f"the tokenizer decodes by {' + '.join(steps) or 'nothing'} (allowed: "
            "ByteLevel, or ByteFallback as of SentencePiece); choose another model"
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    contents = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, token_id in vocabulary.items():
        contents[token_id] = to_bytes(token)
    added = tokenizer.get_added_tokens_decoder()
    special = [token_id for token_id, token in added.items() if token.special]
    return TokenBytes(contents, special, _strips_space(decoder, steps))


def _strips_space(decoder: Mapping[str, Any], steps: Sequence[str]) -> bool:
    if "Strip" in steps:
        return True
    return "Metaspace" in steps and decoder.get("prepend_scheme", "always") != "never"
