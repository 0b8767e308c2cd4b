"""Progress on a terminal, or plain lines where there is none."""

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self, TextIO

_PLAIN_EVERY_S = 30.0
_BAR_CELLS = 24


class Step:
    """Show one step of work with its elapsed time.

    On a terminal the line is rewritten in place; elsewhere a line is
    printed at the start, every 30 s, and at the end.
    """

    __slots__ = ("_out", "_printed_at", "_started", "_text")

    def __init__(self, text: str, out: TextIO | None = None) -> None:
        self._text = text
        self._out = sys.stderr if out is None else out
        self._started = self._printed_at = time.monotonic()

    def __enter__(self) -> Self:
        if self._out.isatty():
            self._rewrite("")
        else:
            self._line("started")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        word = "done" if kind is None else "stopped"
        if self._out.isatty():
            self._rewrite(word)
            self._out.write("\n")
            self._out.flush()
        else:
            self._line(word)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the step began."""
        return time.monotonic() - self._started

    def tick(self, detail: str = "") -> None:
        """Refresh the line; call as often as you like."""
        if self._out.isatty():
            self._rewrite(detail)
        elif time.monotonic() - self._printed_at >= _PLAIN_EVERY_S:
            self._line(detail)

    def count(self, done: int, total: int, detail: str = "") -> None:
        """Refresh the line with a bar of *done* out of *total*."""
        cells = _BAR_CELLS * done // max(total, 1)
        bar = "#" * cells + "." * (_BAR_CELLS - cells)
        self.tick(f"[{bar}] {done}/{total} {detail}".rstrip())

    def _rewrite(self, detail: str) -> None:
        line = f"{self._text} {self.elapsed_s:4.0f} s {detail}".rstrip()
        self._out.write(f"\r\x1b[K{line[:110]}")
        self._out.flush()

    def _line(self, detail: str) -> None:
        self._printed_at = time.monotonic()
        print(f"{self._text} {self.elapsed_s:.0f} s {detail}".rstrip(), file=self._out)
        self._out.flush()


def step_on_terminal(text: str) -> AbstractContextManager[Step | None]:
    """Show a step on a terminal; elsewhere nothing but what the command prints."""
    return Step(text) if sys.stderr.isatty() else nullcontext()
