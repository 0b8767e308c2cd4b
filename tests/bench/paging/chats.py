"""Hits by token against hits by block, on the conversations of an agent."""

import json
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from lengths import read_text
from tokenizers import Tokenizer

from warmroute.policies.kv.block_table import BlockTable
from warmroute.policies.kv.blocks import hash_tokens
from warmroute.policies.kv.pool import BlockPool
from warmroute.policies.kv.segments import SegmentTree

TREE_BLOCK = 16
"""Page size under the token-granular tree; what it hits does not depend on it."""

Call = tuple["array[int]", "array[int]"]
"""Prompt of one call of the model, and prompt with answer."""


def read_calls(path: Path, tokenizer_dir: Path, num_chats: int) -> list[Call]:
    """Tokenize every call of the first *num_chats* trajectories, in their order.

    Messages are rendered as ChatML, which is the template of SmolLM2; tool calls are
    written as JSON. An answer is what the next prompt repeats of it.
    """
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    memo: dict[str, array[int]] = {}

    def encode(text: str) -> "array[int]":
        # ChatML marks are special tokens, so messages tokenize one by one.
        if text not in memo:
            memo[text] = array("I", tokenizer.encode(text).ids)
        return memo[text]

    chats = json.loads(read_text(path))[:num_chats]
    return [call for chat in chats for call in _calls(chat["traj"], encode)]


def _calls(
    messages: list[dict[str, object]], encode: Callable[[str], "array[int]"]
) -> Iterator[Call]:
    tokens = array("I")
    for message in messages:
        text = message["content"] or ""
        if "tool_calls" in message:
            text = f"{text}{json.dumps(message['tool_calls'])}"
        body = encode(f"<|im_start|>{message['role']}\n{text}<|im_end|>\n")
        if message["role"] == "assistant":
            yield tokens + encode("<|im_start|>assistant\n"), tokens + body
        tokens = tokens + body


def hits_by_token(calls: list[Call]) -> int:
    """Count the prompt tokens found in a tree that keeps everything.

    At least one token of each prompt is computed, and the last token of an answer
    leaves no keys and values.
    """
    pool = BlockPool(_num_pages(calls, TREE_BLOCK), TREE_BLOCK)
    tree, hits = SegmentTree(pool), 0
    for prompt, whole in calls:
        match, table = tree.match(prompt[:-1]), BlockTable(TREE_BLOCK)
        hits += match.num_tokens
        table.adopt(pool, match.pages, match.num_tokens)
        table.reserve(pool, len(whole) - 1 - match.num_tokens)
        tree.insert(whole[:-1], table.pages)
        table.free(pool)
    tree.check_integrity()
    return hits


def hits_by_block(calls: list[Call], block_size: int) -> int:
    """Count the prompt tokens found by block hash when everything is kept."""
    pool, hits = BlockPool(_num_pages(calls, block_size), block_size), 0
    for prompt, whole in calls:
        hashes, table = hash_tokens(whole[:-1], block_size, 0), BlockTable(block_size)
        pages = pool.lookup(hashes[: (len(prompt) - 1) // block_size])
        hits += len(pages) * block_size
        table.adopt(pool, pages, len(pages) * block_size)
        table.reserve(pool, len(whole) - 1 - table.num_tokens)
        for depth in range(len(pages), len(hashes)):
            parent = hashes[depth - 1] if depth else None
            pool.register(table.pages[depth], hashes[depth], parent, depth)
        table.free(pool)
    return hits


def _num_pages(calls: list[Call], block_size: int) -> int:
    """Return a pool so large that nothing is ever evicted."""
    return 2 + sum(len(whole) // block_size + 1 for _, whole in calls)
