"""From what a client names blocks by to the hashes of those blocks."""

import asyncio
from array import array
from collections.abc import Callable

from warmroute.adapters.embedded.server.chat_prompt import ChatPrompt
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.adapters.kv_requests import BlocksRequest, check_named
from warmroute.policies.errors import ClientError
from warmroute.policies.kv.blocks import hash_tokens


class BlockNames:
    """Turn prompts, chats and token ids into block hashes, off the event loop.

    Args:
        serving: Tokenizes as requests for completions do.
        block_size: Tokens a block.
        root: Seed of the hashes of requests with a salt, or without one.
    """

    __slots__ = ("_block_size", "_root", "_serving")

    def __init__(
        self, serving: Serving, block_size: int, root: Callable[[str | None], int]
    ) -> None:
        self._serving = serving
        self._block_size = block_size
        self._root = root

    def __repr__(self) -> str:
        return f"<BlockNames in blocks of {self._block_size}>"

    async def resolve(self, request: BlocksRequest) -> list[int]:
        """Return the hashes meant, each once; those of a sequence head first.

        Raises:
            ClientError: The names stand for no full block or for too many, or cannot
                be rendered.
        """
        if request.hashes is not None:
            return list(dict.fromkeys(request.hashes))
        tokens = await self._tokens(request)
        root = self._root(request.cache_salt)
        check_named(len(tokens), len(tokens) // self._block_size)
        hashes = await asyncio.to_thread(self._hash, tokens, root)
        if len(hashes) <= request.skip_blocks:
            raise ClientError(
                400,
                "kv_no_blocks",
                f"{len(tokens)} tokens are {len(hashes)} full blocks of "
                f"{self._block_size}, of which skip_blocks leaves out "
                f"{request.skip_blocks}; name one block or more",
            )
        return hashes[request.skip_blocks :]

    def _hash(self, tokens: list[int], root: int) -> list[int]:
        return hash_tokens(array("I", tokens), self._block_size, root)

    async def _tokens(self, request: BlocksRequest) -> list[int]:
        if request.token_ids is not None:
            return request.token_ids
        if request.prompt is not None:
            return await self._serving.encode(request.prompt, add_special=True)
        chat = ChatPrompt(
            messages=request.messages or [],
            tools=request.tools,
            add_generation_prompt=request.add_generation_prompt,
        )
        return await chat.encode(self._serving)
