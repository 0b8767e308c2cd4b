"""A file of lines that is bounded on disk."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path


class RotatingFile:
    """Append lines; put the file aside when it is full.

    ``path`` becomes ``path.1``, that one ``path.2``, and the one beyond *keep* goes.
    A file that somebody else has moved away is begun anew. Only regular files are
    rotated. Blocks; one thread owns it.

    Args:
        path: Created where missing, with mode 0600.
        max_bytes: Size that no file exceeds, unless by a single line.
        keep: Files kept beside the one being written.
    """

    __slots__ = ("_fd", "_inode", "_is_regular", "_size", "keep", "max_bytes", "path")

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self._fd = -1
        self._inode = 0
        self._size = 0
        self._is_regular = True

    def __repr__(self) -> str:
        state = f"{self._size} bytes" if self._fd >= 0 else "closed"
        return f"<RotatingFile {self.path} {state}>"

    def append(self, lines: Sequence[bytes]) -> None:
        """Write whole lines, each of them with its line feed.

        Raises:
            OSError: Some could not be written; none of them is there in part.
        """
        if self._fd >= 0 and self._was_moved():
            self.close()
        if self._fd < 0:
            self._open()
        begun = 0
        room = self.max_bytes - self._size
        for at, line in enumerate(lines):
            if len(line) > room and self._is_regular and (self._size or at > begun):
                self._write(b"".join(lines[begun:at]))
                self._rotate()
                begun, room = at, self.max_bytes
            room -= len(line)
        self._write(b"".join(lines[begun:]))

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        # Without O_NONBLOCK, a pipe that nobody reads would hold the thread for good.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        fd = os.open(self.path, flags, 0o600)
        facts = os.fstat(fd)
        self._fd, self._inode, self._size = fd, facts.st_ino, facts.st_size
        self._is_regular = stat.S_ISREG(facts.st_mode)
        if self._is_regular:
            os.fchmod(fd, 0o600)
            self._end_torn_line()

    def _end_torn_line(self) -> None:
        """Keep what a crash cut short from spoiling the next line."""
        if self._size:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":
                    self._write(b"\n")

    def _was_moved(self) -> bool:
        try:
            return os.stat(self.path).st_ino != self._inode
        except FileNotFoundError:
            return True

    def _write(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            if done and self._is_regular:
                os.ftruncate(self._fd, self._size)
            raise
        self._size += done

    def _rotate(self) -> None:
        self.close()
        path = self.path
        for number in range(self.keep, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if newer.exists():
                newer.replace(older)
        if not self.keep:
            path.unlink(missing_ok=True)
        self._open()
