"""The client libraries of OpenAI and Anthropic work through the proxy unchanged."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from conformance.raw_engine import DONE, STREAM_HEAD, Request, answer, chunk
from conformance.rig import Rig, StartRig

USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def _sse(data: dict[str, Any], name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return chunk(f"{head}data: {json.dumps(data)}\n\n".encode())


def _chat(message: dict[str, Any], key: str = "message") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion" + (".chunk" if key == "delta" else ""),
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, key: message, "finish_reason": None}],
    }


async def engine(request: Request, writer: asyncio.StreamWriter) -> None:
    """Answer in the shape of the path; a fake of the APIs, not of a model."""
    body = json.loads(request.body)
    if request.path == "/v1/chat/completions" and body.get("stream"):
        writer.write(STREAM_HEAD)
        for word in ("Hel", "lo"):
            writer.write(_sse(_chat({"content": word}, "delta")))
        writer.write(DONE)
    elif request.path == "/v1/chat/completions":
        reply = _chat({"role": "assistant", "content": "Hello"}) | {"usage": USAGE}
        writer.write(answer(json.dumps(reply).encode()))
    elif request.path == "/v1/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        reply = {"object": "list", "model": "m", "data": data, "usage": USAGE}
        writer.write(answer(json.dumps(reply).encode()))
    elif request.path == "/v1/messages" and body.get("stream"):
        writer.write(STREAM_HEAD + b"".join(_message_events()))
        writer.write(b"0\r\n\r\n")
    else:
        writer.write(answer(json.dumps(_message()).encode()))


def _message() -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 2},
    }


def _message_events() -> list[bytes]:
    start = _message() | {"content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        },
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": word},
            }
            for word in ("Hel", "lo")
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]
    return [_sse(one, one["type"]) for one in events]


@pytest.fixture
async def rig(start_rig: StartRig) -> Rig:
    return await start_rig(engine, engine)


async def test_openai_library(rig: Rig) -> None:
    """Models, chat, stream and embeddings, and an error that is ours."""
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{rig.port}/v1", api_key="sk-x", max_retries=0
    ) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="m", messages=messages)
        assert whole.choices[0].message.content == "Hello"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == 9
        stream = await client.chat.completions.create(
            model="m", messages=messages, stream=True
        )
        words = [part.choices[0].delta.content async for part in stream]
        assert words == ["Hel", "lo"]
        vectors = await client.embeddings.create(
            model="m", input="hi", encoding_format="float"
        )
        assert vectors.data[0].embedding == [0.5, 0.25]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="nope", messages=messages)
        assert caught.value.code == "model_not_found"


async def test_anthropic_library(rig: Rig) -> None:
    """Messages, whole and as a stream."""
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{rig.port}", api_key="sk-x", max_retries=0
    ) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.messages.create(model="m", max_tokens=8, messages=messages)
        assert whole.content[0].type == "text"
        assert whole.content[0].text == "Hello"
        async with client.messages.stream(
            model="m", max_tokens=8, messages=messages
        ) as stream:
            assert "".join([text async for text in stream.text_stream]) == "Hello"
        await rig.released()
