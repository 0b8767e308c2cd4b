"""Logs: one line an event, as text for people or JSON for machines.

A message is an event in the past tense (``backend_unhealthy``) and its facts
travel in ``extra``. Prompts, header values and keys never belong in either.
"""

import json
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TextIO

from warmroute.policies.errors import ConfigError

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)

FORMATS = ("auto", "json", "text")
LEVELS = ("debug", "info", "warning", "error")

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {
    *("message", "asctime", "taskName", "color_message"),
}
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+*@,[]()%"
)


def _facts(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """Yield the facts of *record*: what the context binds, then ``extra``."""
    given = record.__dict__
    for variable in (request_id, trace_id):
        value = given.get(variable.name) or variable.get()
        if value is not None:
            yield variable.name, value
    for key, value in given.items():
        if key not in _STANDARD and key not in ("request_id", "trace_id"):
            yield key, value


def _timestamp(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """Write ``time level event key=value ...``; odd values are quoted."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*, with its traceback below."""
        head = f"{_timestamp(record)} {record.levelname.lower()} {_event(record)}"
        line = "".join([head, *(f" {k}={_quote(v)}" for k, v in _facts(record))])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Write one JSON object a line."""

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
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class _LogHandler(logging.StreamHandler[TextIO]):
    """Ours, so that configuring again replaces it and no other."""


def configure(level: str, fmt: str, stream: TextIO) -> None:
    """Send all logs of the process to *stream*; a second call replaces the first.

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
    handler = _LogHandler(stream)
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _LogHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())


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
