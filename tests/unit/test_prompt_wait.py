"""A request whose prompt is still being tokenized: handed on, left, or cut short."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from warmroute.proxy.http.head import RequestHead
from warmroute.proxy.prompt import Prompt
from warmroute.proxy.prompt_wait import PromptWait


class Parts:
    """A fake port, client and prompt around one wait; fakes all of them."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.done = asyncio.Event()
        self.fault = fault
        self.refused: list[str] = []
        self.calls: list[Any] = []
        self.deadline = 0.0
        self.prompt = Prompt("chat")
        self.trace: Any = SimpleNamespace(
            end=lambda now, status, error_type: self.calls.append((status, error_type))
        )
        port: Any = SimpleNamespace(
            routed=self.routed,
            refused=lambda error: self.refused.append(error.code),
            trace_refusal=self.trace_refusal,
            clock=lambda: 7.0,
        )
        head = RequestHead(b"POST", b"/v1/chat/completions", "1.1", [(b"host", b"p")])
        client: Any = self
        self.wait = PromptWait(
            port, client, head, b"{}", self.prompt, self, self.trace, 3.0
        )

    async def finish(self) -> None:
        await self.done.wait()
        self.prompt.grade = "exact"

    def miscounted(self, *_: object) -> None:
        """Not of interest here."""

    def routed(self, client, head, body, prompt, trace, started_at) -> str:
        if self.fault is not None:
            raise self.fault
        self.calls.append((prompt.grade, started_at))
        return "exchange"

    def trace_refusal(self, trace, head, peer, started_at, error) -> None:
        trace.end(7.0, error.status, error_type=error.code)

    # the client

    peer = b"127.0.0.1"

    def hand_over(self, work: str) -> None:
        self.calls.append(work)

    def write(self, data: bytes) -> None:
        self.calls.append(data.split(b"\r\n")[0])

    def finished(self, *, keep_alive: bool) -> None:
        self.calls.append(f"keep_alive={keep_alive}")

    def abort(self) -> None:
        self.calls.append("abort")

    async def settle(self) -> None:
        """Let the wait's task run to its end."""
        task = self.wait._task
        assert task is not None
        await asyncio.gather(task, return_exceptions=True)


async def test_the_connection_is_handed_to_what_answers():
    """With the time of the arrival, so that the wait counts."""
    parts = Parts()
    parts.wait.begin()
    assert parts.deadline == float("inf")
    parts.done.set()
    await parts.settle()
    assert parts.calls == [("exact", 3.0), "exchange"]


async def test_a_client_that_leaves_ends_it():
    parts = Parts()
    parts.wait.begin()
    parts.wait.client_writable(False)
    parts.wait.expired()
    parts.wait.client_gone()
    parts.done.set()
    await parts.settle()
    assert parts.calls == [(499, "client_gone")]
    assert parts.refused == ["client_gone"]


async def test_the_end_of_the_process_is_told():
    parts = Parts()
    parts.wait.begin()
    parts.wait.interrupted()
    parts.done.set()
    await parts.settle()
    assert parts.refused == ["draining"]
    assert parts.calls == [
        (503, "draining"),
        b"HTTP/1.1 503 Service Unavailable",
        "keep_alive=False",
    ]


async def test_a_fault_of_ours_does_not_leave_the_client_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = Parts(RuntimeError("broken"))
    parts.wait.begin()
    parts.done.set()
    await parts.settle()
    assert parts.calls == ["abort"]
    assert caplog.records[0].message == "request_broke"
