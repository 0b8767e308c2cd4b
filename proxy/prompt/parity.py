"""Whether our tokens are those of an engine: the proof that a prompt is exact."""

import json
from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from warmroute.adapters.tokens.errors import ModelError
from warmroute.policies.errors import AdapterError
from warmroute.proxy.prompt.engine_tokens import (
    Question,
    first_difference,
    questions,
)
from warmroute.proxy.prompt.exact_bodies import decode_exact
from warmroute.proxy.prompt.renderer import Renderer

Ask = Callable[[Question], Awaitable["array[int] | None"]]

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a place, as it is now.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town & its country"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["place"],
        },
    },
}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"place": "Bergen, Norway"}'},
}
_SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
_QUESTION = {"role": "user", "content": "What is the weather in Bergen?\n\nBe short. "}
TEXT = "text"
"""The only check that is no chat."""

_FILLER = "as it was, so it is. " * 9

CHECKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", {"messages": [_SYSTEM, _QUESTION]}),
    "tools": (
        "chat",
        {
            "tools": [_TOOL],
            "messages": [
                _SYSTEM,
                _QUESTION,
                {"role": "assistant", "content": None, "tool_calls": [_CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": '{"rain": true}'},
                {"role": "assistant", "content": "It rains."},
                {"role": "user", "content": "And tomorrow?"},
            ],
        },
    ),
    "unicode": (
        "chat",
        {
            "messages": [
                {"role": "user", "content": "Größe 12 °C\t— 天气怎么样 🌧️🇳🇴 e\u0301 ﬁ"}
            ]
        },
    ),
    "long": (
        "chat",
        {
            "messages": [
                {"role": role, "content": f"Turn {turn}: {_FILLER}"}
                for turn in range(24)
                for role in ("user", "assistant")
            ]
            + [_QUESTION]
        },
    ),
    "continue": (
        "chat",
        {
            "messages": [_QUESTION, {"role": "assistant", "content": "It is rai"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    TEXT: ("completions", {"prompt": "Once upon a time, there were 3 \n\n  engines"}),
}
"""Prompts of our own, by name: the kind of body, and the body."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say how one check went.

    Args:
        check: Name of the prompt.
        outcome: ``equal``, ``differs``, or ``skipped`` where one side refused it.
        detail: What differs, or why it was skipped.
    """

    check: str
    outcome: str
    detail: str = ""


async def check_parity(renderer: Renderer, model: str, ask: Ask) -> list[Verdict]:
    """Compare our tokens of every check with those of one engine.

    Empty if the engine offers no way to ask.

    Args:
        renderer: The model's own files.
        model: The name by which the engine serves it.
        ask: Asks the engine, as `Adapter.tokenize` does.
    """
    verdicts = []
    for name, (kind, body) in CHECKS.items():
        try:
            fields = decode_exact(kind, json.dumps({**body, "model": model}).encode())
            ours = renderer.encoder.complete(renderer.draft(fields))[0]
            theirs = await ask(next(questions(fields, model)))
        except (ModelError, AdapterError) as error:
            verdicts.append(Verdict(name, "skipped", str(error)))
            continue
        if theirs is not None:
            verdicts.append(_judge(renderer, name, ours, theirs))
    return verdicts


def _judge(
    renderer: Renderer, name: str, ours: "array[int]", theirs: "array[int]"
) -> Verdict:
    at = first_difference(ours, theirs)
    if at is None:
        return Verdict(name, "equal")
    here, there = (renderer.encoder.show(one[at : at + 1]) for one in (ours, theirs))
    detail = (
        f"token {at} of {len(ours)} is {here} here and {there} in the engine, whose "
        f"prompt has {len(theirs)}"
    )
    return Verdict(name, "differs", detail)
