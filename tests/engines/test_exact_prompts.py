"""Our tokens of real chats are those that vLLM makes, with its own classes."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines.chat_templates import ALL
from two_vllm.cache import cache_folder
from two_vllm.engines import EngineOptions
from two_vllm.models import ensure_smollm2

from warmroute.adapters.tokens.errors import ModelError
from warmroute.adapters.tokens.files import DEFAULT, TokenizerFiles
from warmroute.proxy.config.tokenizers import read_tokenizer
from warmroute.proxy.demo.chats import DATA
from warmroute.proxy.prompt.exact_bodies import decode_exact
from warmroute.proxy.prompt.memo import TokenMemo
from warmroute.proxy.prompt.renderer import Renderer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

NUM_CHATS = 1000
# A package whose templates are those of the published models.
PUBLISHED = "trl==1.16.0"

Body = dict[str, Any]


def published_templates() -> dict[str, str]:
    """Fetch the templates of model families once; none without a package index."""
    folder = cache_folder() / f"templates-{PUBLISHED}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command = [*pip, "--target", str(folder), PUBLISHED]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return {}
    return {path.stem: path.read_text() for path in sorted(folder.rglob("*.jinja"))}


def real_chats() -> list[list[Body]]:
    """Return an agent's chats, cut behind each of their messages."""
    rows = (DATA / "airline_chats.jsonl").read_text().splitlines()
    chats = [json.loads(row)["messages"] for row in rows]
    return [chat[:end] for chat in chats for end in range(1, len(chat) + 1)]


def tools_of(chats: list[list[Body]]) -> list[Body]:
    """Describe the functions that are called in the chats."""
    calls = [
        call for chat in chats for one in chat for call in one.get("tool_calls", ())
    ]
    known = {call["function"]["name"]: call["function"]["arguments"] for call in calls}
    return [
        {
            "function": {
                "parameters": {
                    "type": "object",
                    "properties": {
                        key: {"type": "string", "description": f'The <{key}> & "more"'}
                        for key in json.loads(arguments)
                    },
                },
                "description": f"Run {name}.",
                "name": name,
            },
            "type": "function",
        }
        for name, arguments in sorted(known.items())
    ]


def bodies(templates: dict[str, str]) -> Iterator[Body]:
    """Make requests of every kind that is exact, the templates in turn."""
    chats, system = real_chats(), (DATA / "airline_system.md").read_text()
    tools, sources = tools_of(chats), list(templates.values())
    chance = random.Random(32)
    for at in range(NUM_CHATS):
        chat = [dict(message) for message in chance.choice(chats)]
        body: Body = {"model": "m", "chat_template": sources[at % len(sources)]}
        if chance.random() < 0.7:
            role = chance.choice(["system", "system", "developer"])
            chat.insert(0, {"role": role, "content": system})
        if chance.random() < 0.7:
            body["tools"] = tools
        if chance.random() < 0.2:
            body["chat_template_kwargs"] = {"enable_thinking": chance.random() < 0.5}
        if chance.random() < 0.1:
            body["reasoning_effort"] = chance.choice(["none", "low", "high"])
        if chance.random() < 0.1:
            body["documents"] = [{"title": "t", "text": "é 世"}]
        for message in chat:
            dress(message, chance)
        if chat[-1]["role"] == "assistant" and chat[-1].get("content"):
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        elif chance.random() < 0.1:
            body["add_generation_prompt"] = False
        if chance.random() < 0.1:
            body["add_special_tokens"] = True
        yield {**body, "messages": chat}
    yield {"model": "m", "prompt": ["Once upon a time", " e\u0301 \n\n x<|im_end|>"]}
    yield {"model": "m", "prompt": "a  b", "add_special_tokens": False}


def dress(message: Body, chance: random.Random) -> None:
    """Write a message in another of the forms that the API allows."""
    text = message.get("content")
    if text and message["role"] != "system" and chance.random() < 0.15:
        cut = chance.randrange(len(text) + 1)
        second = {"type": "text", "text": text[cut:], "cache_control": {"a": 1}}
        message["content"] = [{"type": "text", "text": text[:cut]}, second]
    if message["role"] == "assistant" and chance.random() < 0.3:
        message[chance.choice(["reasoning", "reasoning_content"])] = " As I see it. "


class Ours:
    """Our tokens, with one memo for all requests."""

    def __init__(self, files: TokenizerFiles) -> None:
        self._files = files
        self._memo = TokenMemo()
        self._renderers: dict[str | None, Renderer] = {}

    def tokens(self, body: Body) -> list[list[int]] | None:
        body = dict(body)
        source = body.pop("chat_template", None)
        if source not in self._renderers:
            files = self._files
            if source is not None:
                files = replace(files, templates={DEFAULT: source})
            self._renderers[source] = Renderer(files, self._memo)
        renderer = self._renderers[source]
        try:
            kind = "chat" if "messages" in body else "completions"
            draft = renderer.draft(decode_exact(kind, json.dumps(body).encode()))
        except ModelError:
            return None
        return [list(one) for one in renderer.encoder.complete(draft)]


@pytest.mark.parametrize("source", ["own", "published"])
async def test_tokens_are_those_of_vllm(
    engine_options: EngineOptions, source: str
) -> None:
    """1,000 chats; where one side refuses, the other must not give tokens."""
    templates = ALL if source == "own" else published_templates()
    if not templates:
        pytest.skip(f"{PUBLISHED} cannot be fetched")
    folder = ensure_smollm2(engine_options.environment)
    asked = [*bodies(templates)]
    process = await asyncio.create_subprocess_exec(
        str(engine_options.environment / "bin" / "python"),
        *(str(Path(__file__).with_name("vllm_prompts.py")), str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, error = await process.communicate("\n".join(map(json.dumps, asked)).encode())
    theirs = [json.loads(line) for line in said.splitlines()]
    assert len(theirs) == len(asked), error.decode()[-2000:]
    ours = Ours(read_tokenizer(folder))
    outcomes: Counter[str] = Counter()
    for body, expected in zip(asked, theirs, strict=True):
        found = ours.tokens(body)
        assert found == expected, {**body, "chat_template": "", "tools": ""}
        outcomes["refused" if expected is None else "equal"] += 1
    assert outcomes["equal"] > 2 * outcomes["refused"]
