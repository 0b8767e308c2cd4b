"""Log lines in a queue: nobody waits for their reader, and losses are told."""

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from warmroute.proxy import log_queue, logs
from warmroute.proxy.log_queue import MAX_LINES, LineWriter, LogQueue

logger = logging.Logger("warmroute.x")


class Pipe:
    """A pipe as a stream of log lines, read when the test says so."""

    def __init__(self) -> None:
        self.reader, self.target = os.pipe()
        self.encoding = "utf-8"
        self.bad: list[int] = []

    def fileno(self) -> int:
        return self.bad.pop() if self.bad else self.target

    def read(self, until: str) -> list[dict[str, Any]]:
        """Read up to the line of the event *until*."""
        data = b""
        while f'"{until}"'.encode() not in data or not data.endswith(b"\n"):
            data += os.read(self.reader, 1 << 20)
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.target)


@pytest.fixture
def queue(pipe: Pipe) -> Iterator[LogQueue]:
    """A queue of JSON lines to the pipe, alone on the logger."""
    stream: Any = pipe
    queue = LogQueue(LineWriter(stream, logs.JsonFormatter()), logs.settle)
    logger.handlers[:] = [queue]
    yield queue
    logger.handlers.clear()
    queue.close()


def test_a_reader_that_stands_still_holds_nobody_up(
    queue: LogQueue, pipe: Pipe
) -> None:
    """What finds no room is dropped, and the next line says how many were."""
    num = 3 * MAX_LINES
    for at in range(num):
        logger.info("routed", extra={"at": at})
    assert queue.queue.qsize() <= MAX_LINES
    some = pipe.read("routed")
    while queue.queue.qsize() > MAX_LINES // 2:
        some += pipe.read("routed")
    logger.info("last")
    lines = some + pipe.read("last")
    lost = sum(line.get("log_lines_lost", 0) for line in lines)
    assert lost > 0
    assert lost + len(lines) == num + 1
    assert [line["at"] for line in lines[:9]] == list(range(9))


def test_a_full_disk_costs_no_traceback_a_line(
    queue: LogQueue, pipe: Pipe, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lines are lost, and counted in the first that is written again."""
    with open("/dev/full", "wb") as full:
        pipe.bad = [full.fileno()] * 5
        for _ in range(5):
            logger.info("routed")
        logger.info("last")
        (line,) = pipe.read("last")
    assert line["log_lines_lost"] == 5
    assert capfd.readouterr().err == ""


def test_what_waits_is_written_at_the_end(queue: LogQueue, pipe: Pipe) -> None:
    for at in range(50):
        logger.info("routed", extra={"at": at})
    queue.close()
    assert len(pipe.read("routed")) == 50


def test_the_end_does_not_wait_for_a_reader_that_stands_still(
    queue: LogQueue, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For no longer than its bound."""
    monkeypatch.setattr(log_queue, "FLUSH_S", 0.05)
    for _ in range(MAX_LINES):
        logger.info("routed")
    thread = queue._listener._thread
    assert thread is not None
    queue.close()
    assert queue.queue.qsize() > 0
    os.set_blocking(pipe.reader, False)
    while thread.is_alive():  # it ends before the pipe does
        with contextlib.suppress(BlockingIOError):
            os.read(pipe.reader, 1 << 20)


def test_lines_have_what_the_callers_context_knew(queue: LogQueue, pipe: Pipe) -> None:
    """Another thread formats them, later: ids, arguments, facts, tracebacks."""
    facts = ["a"]
    token = logs.request_id.set("r")
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("failed %d", 7, extra={"names": facts, "odd": pipe})
    logs.request_id.reset(token)
    facts.append("b")
    (line,) = pipe.read("failed 7")
    assert line["request_id"] == "r"
    assert line["names"] == ["a"]
    assert line["odd"] == str(pipe)
    assert "ValueError: broken" in line["exception"]


def test_another_handler_sees_the_record_as_it_was(queue: LogQueue) -> None:
    """What is settled for the thread is a copy."""
    seen: list[logging.LogRecord] = []
    other = logging.Handler()
    other.emit = seen.append  # type: ignore[method-assign]
    logger.addHandler(other)
    logger.info("failed %d", 7)
    assert seen[0].args == (7,)


def test_a_fork_has_a_thread_of_its_own(pipe: Pipe) -> None:
    """It does not write what its parent had in the queue."""
    stream: Any = pipe
    logs.configure("info", "json", stream)
    try:
        child = os.fork()
        if not child:
            logging.getLogger("x").info("forked")
            logs._queues()[0].close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert [line["event"] for line in pipe.read("forked")] == ["forked"]
    finally:
        (mine,) = logs._queues()
        logging.getLogger().removeHandler(mine)
        mine.close()


def test_a_stream_without_a_file_is_written_to() -> None:
    stream = io.StringIO()
    queue = LogQueue(LineWriter(stream, logging.Formatter()), logs.settle)
    queue.handle(logger.makeRecord("x", 20, "", 1, "one", (), None))
    queue.close()
    assert stream.getvalue() == "one\n"
    assert repr(queue) == "<LogQueue 0 waiting, 0 lost>"
