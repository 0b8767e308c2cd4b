"""The whole terminal as one page that is drawn over and over."""

import os
import select
import shutil
import signal
import sys
import termios
import tty
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self, TextIO

_ENTER: Final = "\x1b[?1049h\x1b[?25l"  # the other screen, no cursor
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_END_OF_LINE: Final = "\x1b[K\r\n"
_REST: Final = "\x1b[J"


class Screen:
    """Own the terminal until it is left, and give it back as it was.

    Keys come at once and unseen; Ctrl-C stays a signal.

    Args:
        out: Where to draw.
        keys: File descriptor of the keyboard.
    """

    __slots__ = ("_keys", "_mode", "_on_end", "_out")

    def __init__(self, out: TextIO | None = None, keys: int | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._keys = sys.stdin.fileno() if keys is None else keys

    def __repr__(self) -> str:
        return f"<Screen {self._out!r}>"

    def __enter__(self) -> Self:
        self._mode = termios.tcgetattr(self._keys)
        # Killed, it must give the terminal back as well.
        self._on_end = signal.signal(signal.SIGTERM, _exit)
        tty.setcbreak(self._keys)
        self._write(_ENTER)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._keys, termios.TCSADRAIN, self._mode)
        signal.signal(signal.SIGTERM, self._on_end)

    def draw(self, text: str) -> None:
        """Show *text*; what does not fit is cut off."""
        columns, rows = shutil.get_terminal_size()
        lines = [line[:columns] for line in text.splitlines()[: rows - 1]]
        self._write(_HOME + "".join(line + _END_OF_LINE for line in lines) + _REST)

    def key(self, timeout_s: float) -> str:
        """Return the key that is pressed within *timeout_s*, or nothing."""
        ready, _, _ = select.select([self._keys], [], [], timeout_s)
        if not ready:
            return ""
        # Without an end, a keyboard that is gone would be asked over and over.
        return os.read(self._keys, 64).decode("utf-8", "replace") or "q"

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
