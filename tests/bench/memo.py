"""Print what a turn of a long chat costs, against tokenizing it for the first time.

Run: python tests/bench/memo.py [FOLDER]

FOLDER holds a tokenizer.json and a chat template; without it the default model of
the embedded engine is used, and fetched once. The chat has 100 messages and at least
60,000 tokens.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from warmroute.adapters.embedded.model.packaged import find_packaged
from warmroute.adapters.tokens.files import TokenizerFiles
from warmroute.policies.kv.blocks import hash_tokens, root_hash
from warmroute.proxy.config.tokenizers import read_tokenizer
from warmroute.proxy.demo.chats import DATA
from warmroute.proxy.prompt.exact_bodies import decode_exact
from warmroute.proxy.prompt.memo import TokenMemo
from warmroute.proxy.prompt.renderer import Renderer

MESSAGES = 100
TOKENS = 60_000
TURNS = 9
CHARS_PER_TOKEN = 3.2


def chat(num_messages: int, chars: int) -> list[dict[str, str]]:
    """Return a chat whose messages differ, of words that real chats have."""
    rows = (DATA / "airline_chats.jsonl").read_text().splitlines()
    spoken = [one.get("content") for row in rows for one in json.loads(row)["messages"]]
    words = " ".join(text for text in spoken if text)
    return [
        {
            "role": "assistant" if at % 2 else "user",
            "content": f"{at}. " + words[at * 997 % 90_000 :][:chars],
        }
        for at in range(num_messages)
    ]


def body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def read(renderer: Renderer, data: bytes) -> int:
    fields = decode_exact("chat", data)
    return len(renderer.encoder.complete(renderer.draft(fields))[0])


def show_turns(files: TokenizerFiles) -> None:
    messages = chat(MESSAGES + TURNS + 1, int(TOKENS / MESSAGES * CHARS_PER_TOKEN))
    first = []
    for _ in range(3):
        renderer = Renderer(files, TokenMemo())
        first.append(timed(lambda r=renderer: read(r, body(messages[:MESSAGES]))))  # type: ignore[misc]
    num_tokens = read(renderer, body(messages[:MESSAGES]))
    turns = []
    for turn in range(1, TURNS + 1):
        data = body(messages[: MESSAGES + turn])
        turns.append(timed(lambda d=data: read(renderer, d)))  # type: ignore[misc]
    again = [timed(lambda: read(renderer, data)) for _ in range(TURNS)]
    share = median(turns) / min(first)
    print(f"{MESSAGES} messages, {num_tokens} tokens, {len(data)} bytes of body")
    print(f"first time   {min(first):8.2f} ms (best of 3)")
    print(f"one message  {median(turns):8.2f} ms (median of {TURNS}): {share:.1%}")
    print(f"nothing new  {median(again):8.2f} ms (median of {TURNS})")
    tokens = renderer.encoder.complete(renderer.draft(decode_exact("chat", data)))[0]
    root = root_hash("m")
    hashing = [timed(lambda: hash_tokens(tokens, 16, root)) for _ in range(TURNS)]
    print(f"block hashes {median(hashing):8.2f} ms (blocks of 16)")


def show_inline(files: TokenizerFiles) -> None:
    renderer = Renderer(files, TokenMemo())
    text = " ".join(message["content"] for message in chat(20, 2000))
    loop = asyncio.new_event_loop()
    hops = [
        timed(lambda: loop.run_until_complete(asyncio.to_thread(int)))
        for _ in range(200)
    ]
    loop.close()
    print(f"to a thread and back {median(hops):.3f} ms")
    for chars in (128, 256, 512, 1024, 2048, 4096):
        costs = []
        for at in range(50):
            data = body([{"role": "user", "content": text[at * 61 :][:chars]}])
            costs.append(timed(lambda d=data: read(renderer, d)))  # type: ignore[misc]
        print(f"new text of {chars:5} characters {median(costs):.3f} ms")


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else find_packaged()
    files = read_tokenizer(place)
    show_turns(files)
    show_inline(files)


if __name__ == "__main__":
    main()
