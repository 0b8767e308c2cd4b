"""Print the microseconds that reading a body takes, by its size and shape.

Run: python tests/bench/prompt.py
"""

import json
import timeit
from collections.abc import Callable
from functools import partial

from warmroute.proxy.process import tune_allocator
from warmroute.proxy.prompt import PromptReader

JSON = b"application/json"
SIZES = {"1 KB": 1 << 10, "32 KB": 1 << 15, "256 KB": 1 << 18, "1 MB": 1 << 20}
WORDS = 'The engine keeps what it has "seen".\nSo does the router. '


def text_of(size: int) -> str:
    return (WORDS * (size // len(WORDS) + 1))[:size]


def chat(size: int) -> tuple[str, object]:
    turns = [
        {"role": role, "content": text_of((size - 200) // 4)}
        for role in ("system", "user", "assistant", "user")
    ]
    return "/v1/chat/completions", {"model": "m", "messages": turns, "stream": True}


def tools(size: int) -> tuple[str, object]:
    function = {"name": "f", "parameters": {"type": "object"}, "description": WORDS}
    tool = {"type": "function", "function": function}
    path, body = chat(size // 2)
    assert isinstance(body, dict)
    return path, {**body, "tools": [tool] * (size // 2 // len(json.dumps(tool)) or 1)}


def completion(size: int) -> tuple[str, object]:
    return "/v1/completions", {"model": "m", "prompt": text_of(size - 100)}


def token_ids(size: int) -> tuple[str, object]:
    ids = [10_000 + i * 7919 % 90_000 for i in range(size // 7)]
    return "/v1/completions", {"model": "m", "prompt": ids}


def measure(call: Callable[[], object], size: int) -> float:
    number = max(5, (1 << 21) // size)
    return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e6


def main() -> None:
    tune_allocator()
    reader = PromptReader()
    print(f"{'us per body':12}", *(f"{name:>9}" for name in SIZES))
    for shape in (chat, tools, completion, token_ids):
        row = []
        for size in SIZES.values():
            path, fields = shape(size)
            body = json.dumps(fields).encode()
            assert reader.read(path, JSON, b"", body).pieces
            row.append(measure(partial(reader.read, path, JSON, b"", body), size))
        print(f"{shape.__name__:12}", *(f"{cost:9.1f}" for cost in row))


if __name__ == "__main__":
    main()
