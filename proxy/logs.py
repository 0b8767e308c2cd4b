"""Logs: one line an event, as text for people or JSON for machines.

A message is an event in the past tense (``backend_unhealthy``) and its facts
travel in ``extra``. Prompts, header values and keys never belong in either.
"""

import copy
import json
import logging
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TextIO

from warmroute.policies.errors import ConfigError
from warmroute.proxy.log_queue import LineWriter, LogQueue

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)

FORMATS = ("auto", "json", "text")
LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {
    *("message", "asctime", "taskName", "color_message"),
}
_UNCHANGING = frozenset({str, int, float, bool, bytes, tuple, type(None)})
_TRACEBACKS = logging.Formatter()
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+*@,[]()%"
)


def _facts(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the facts of *record*: its ids, then what else ``extra`` gave."""
    given = record.__dict__
    for variable in (request_id, trace_id):
        value = given.get(variable.name)
        if value is not None:
            yield variable.name, value
    for key, value in given.items():
        if key not in _STANDARD and key not in ("request_id", "trace_id"):
            yield key, value


def _timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """Write a settled record as ``time level event key=value ...``.

    Odd values are quoted.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*, with its traceback below."""
        head = f"{_timestamp(record)} {record.levelname.lower()} {_event(record)}"
        line = "".join([head, *(f" {k}={_quote(v)}" for k, v in _facts(record))])
        if record.exc_text:
            line += f"\n{record.exc_text}"
        return line


class JsonFormatter(logging.Formatter):
    """Write a settled record as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*; a traceback is one of its values."""
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        for key, value in _facts(record):
            line.setdefault(key, value)
        if record.exc_text:
            line["exception"] = record.exc_text
        return json.dumps(line, default=str, ensure_ascii=False)


def settle(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of *record* that is the same in another thread, and later.

    It has the context's ids, and no traceback, whose frames hold what their thread
    must take down.
    """
    settled = logging.LogRecord.__new__(logging.LogRecord)
    facts = settled.__dict__
    facts.update(record.__dict__)
    if record.args:
        settled.msg, settled.args = record.getMessage(), None
    if record.exc_info:
        settled.exc_text = record.exc_text or _TRACEBACKS.formatException(
            record.exc_info
        )
        settled.exc_info = None
    for variable in (request_id, trace_id):
        value = variable.get()
        if value is not None and not facts.get(variable.name):
            facts[variable.name] = value
    for key in facts.keys() - _STANDARD:
        value = facts[key]
        if type(value) not in _UNCHANGING:
            is_container = isinstance(value, list | dict | set)
            facts[key] = copy.copy(value) if is_container else str(value)
    return settled


def configure(level: str, fmt: str, stream: TextIO) -> None:
    """Send all logs of the process to *stream*; a second call replaces the first.

    They are written by a thread: see `LogQueue` for what happens when it falls behind.

    Args:
        level: One of `LEVELS`.
        fmt: One of `FORMATS`; auto is text on a terminal, else JSON.
        stream: Usually stdout.

    Raises:
        ConfigError: *level* or *fmt* is unknown.
    """
    _check("log.level", level, LEVELS)
    _check("log.format", fmt, FORMATS)
    is_json = fmt == "json" or (fmt == "auto" and not stream.isatty())
    formatter = JsonFormatter() if is_json else TextFormatter()
    root = logging.getLogger()
    queues = _queues()
    if [queue.writer.stream for queue in queues] == [stream]:
        queues[0].writer.formatter = formatter  # what waits goes out in the new form
    else:
        root.addHandler(LogQueue(LineWriter(stream, formatter), settle))
        for queue in queues:
            root.removeHandler(queue)
            queue.close()
    root.setLevel(level.upper())


def _queues() -> list[LogQueue]:
    handlers = logging.getLogger().handlers
    return [handler for handler in handlers if isinstance(handler, LogQueue)]


def _restart_queues() -> None:
    for queue in _queues():
        queue.restart()


os.register_at_fork(after_in_child=_restart_queues)


def _check(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}: unknown {value!r} (known: {', '.join(allowed)})")


def _event(record: logging.LogRecord) -> str:
    """Return the message on one line: a forged line break stays visible."""
    text = record.getMessage()
    return text if text.isprintable() else json.dumps(text)[1:-1]


def _quote(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if text and _PLAIN.issuperset(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
