import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from warmroute.policies.errors import ConfigError
from warmroute.proxy import logs
from warmroute.proxy.log_queue import LogQueue


class FakeTerminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def record(event: str = "backend_down", **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("warmroute.x", logging.WARNING, "", 1, event, (), None)
    made.created, made.msecs = 1_800_000_000.25, 250.0
    made.__dict__.update(facts)
    return made


def written() -> None:
    """Let what was logged be written, and no more."""
    for handler in list(logging.getLogger().handlers):
        if isinstance(handler, LogQueue):
            handler.close()


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, restored afterwards."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    written()
    logger.handlers[:] = handlers
    logger.setLevel(level)


class TestText:
    def test_writes_time_level_event_and_facts(self) -> None:
        """One line, facts in the order given."""
        line = logs.TextFormatter().format(record(backend="a", reason="timeout"))
        assert line == (
            "2027-01-15T08:00:00.250Z warning backend_down backend=a reason=timeout"
        )

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("two words", '"two words"'),
            ("", '""'),
            ("a=b", '"a=b"'),
            ('say "x"', r'"say \"x\""'),
            ("line\nbreak", r'"line\nbreak"'),
            (0.1234567891, "0.123457"),
            (None, "None"),
            (17, "17"),
        ],
    )
    def test_quotes_what_would_be_ambiguous(self, value: object, expected: str) -> None:
        """A value never splits, nor forges, a line."""
        line = logs.TextFormatter().format(record(key=value))
        assert line.endswith(f" key={expected}")

    def test_a_forged_line_break_in_the_message_stays_visible(self) -> None:
        """A message is one line."""
        line = logs.TextFormatter().format(record("bad\n2027 info fine"))
        assert "\n" not in line

    def test_a_traceback_follows_below(self) -> None:
        """Exceptions keep their traceback."""
        failed = record()
        try:
            raise ValueError("broken")
        except ValueError:
            failed.exc_info = sys.exc_info()
        assert "ValueError: broken" in logs.TextFormatter().format(logs.settle(failed))


class TestJson:
    def test_writes_one_object_a_line(self) -> None:
        """Facts are keys of their own and keep their types."""
        line = logs.JsonFormatter().format(record(backend="a", failures=3))
        assert json.loads(line) == {
            "time": "2027-01-15T08:00:00.250Z",
            "level": "warning",
            "event": "backend_down",
            "logger": "warmroute.x",
            "backend": "a",
            "failures": 3,
        }

    def test_a_fact_cannot_overwrite_the_head(self) -> None:
        """The level of a line is its level."""
        line = logs.JsonFormatter().format(record(level="info"))
        assert json.loads(line)["level"] == "warning"

    def test_odd_values_are_text(self) -> None:
        """A value that JSON does not know is written as text."""
        line = logs.JsonFormatter().format(record(key={1}))
        assert json.loads(line)["key"] == "{1}"

    def test_a_traceback_is_a_value(self) -> None:
        """An exception stays one line."""
        failed = record()
        try:
            raise ValueError("broken")
        except ValueError:
            failed.exc_info = sys.exc_info()
        line = logs.JsonFormatter().format(logs.settle(failed))
        assert "\n" not in line
        assert "ValueError: broken" in json.loads(line)["exception"]


class TestContext:
    def test_ids_of_the_context_are_in_every_line(self) -> None:
        """request_id and trace_id need not be passed along."""
        tokens = [
            (var, var.set(var.name[0])) for var in (logs.request_id, logs.trace_id)
        ]
        line = logs.TextFormatter().format(logs.settle(record(backend="a")))
        for variable, token in tokens:
            variable.reset(token)
        assert line.endswith("backend_down request_id=r trace_id=t backend=a")

    def test_extra_beats_the_context(self) -> None:
        """The id that the caller gives is the one that is meant."""
        token = logs.request_id.set("outer")
        line = logs.TextFormatter().format(logs.settle(record(request_id="inner")))
        logs.request_id.reset(token)
        assert line.endswith("backend_down request_id=inner")


class TestConfigure:
    @pytest.mark.parametrize(
        ("fmt", "stream", "starts"),
        [
            ("auto", FakeTerminal(), "2"),
            ("auto", io.StringIO(), "{"),
            ("json", FakeTerminal(), "{"),
            ("text", io.StringIO(), "2"),
        ],
    )
    def test_auto_is_text_on_a_terminal_only(
        self, fmt: str, stream: io.StringIO, starts: str, root: logging.Logger
    ) -> None:
        """Machines get JSON, people get text, and both can be forced."""
        logs.configure("info", fmt, stream)
        logging.getLogger("plugin").info("hello")
        written()
        assert stream.getvalue().startswith(starts)

    def test_a_second_call_replaces_the_first(self, root: logging.Logger) -> None:
        """A reload does not double the lines."""
        first, second = io.StringIO(), io.StringIO()
        logs.configure("info", "text", first)
        logs.configure("warning", "text", second)
        logging.getLogger("plugin").info("quiet")
        logging.getLogger("plugin").warning("loud")
        written()
        assert first.getvalue() == ""
        assert second.getvalue().count("\n") == 1

    def test_a_reload_to_the_same_stream_keeps_what_waits(
        self, root: logging.Logger
    ) -> None:
        """One queue goes on, with the new form and level."""
        stream = io.StringIO()
        logs.configure("info", "text", stream)
        (before,) = [one for one in root.handlers if isinstance(one, LogQueue)]
        logs.configure("warning", "json", stream)
        (after,) = [one for one in root.handlers if isinstance(one, LogQueue)]
        assert after is before
        logging.getLogger("plugin").warning("loud")
        written()
        assert json.loads(stream.getvalue())["event"] == "loud"

    @pytest.mark.parametrize(("level", "fmt"), [("loud", "text"), ("info", "xml")])
    def test_unknown_names_are_configuration_errors(self, level: str, fmt: str) -> None:
        """The error lists what is known."""
        with pytest.raises(ConfigError, match="known: "):
            logs.configure(level, fmt, io.StringIO())
