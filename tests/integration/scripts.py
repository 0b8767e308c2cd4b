"""Scripts of engines whose streams a test holds and lets go; fakes, not models."""

import asyncio
import json
from typing import Any

from conformance.raw_engine import DONE, STREAM_HEAD, Request, answer, chunk, event
from conformance.rig import PATIENCE_S, Client

USAGE: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": 1}


class HeldStream:
    """Begin a stream or hold an answer, until the test releases it."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if b'"stream": true' not in request.body:
            await self.released.wait()
            await answer_ok(request, writer)
            return
        writer.write(STREAM_HEAD + event("first"))
        await self.released.wait()
        writer.write(event("last") + DONE)


async def answer_ok(request: Request, writer: asyncio.StreamWriter) -> None:
    """Answer with a chat completion and its usage."""
    writer.write(answer(json.dumps({"id": "x", "usage": USAGE}).encode()))


async def stream_ok(request: Request, writer: asyncio.StreamWriter) -> None:
    """Stream one token, usage, and the end."""
    usage = chunk(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode())
    writer.write(STREAM_HEAD + event("token") + usage + chunk(b"\n\n") + DONE)


async def read_until(client: Client, text: bytes) -> bytes:
    """Read an answer up to and with *text*."""
    async with asyncio.timeout(PATIENCE_S):
        return await client.reader.readuntil(text)


async def read_rest(client: Client) -> bytes:
    """Read all that still comes until the proxy closes."""
    async with asyncio.timeout(PATIENCE_S):
        return await client.reader.read()
