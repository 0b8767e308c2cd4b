"""What owns the file of the access records, and bears its troubles."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from warmroute.proxy.config.records import RecordsConfig
from warmroute.proxy.records.rotating_file import RotatingFile

logger = logging.getLogger(__name__)

RETRY_S: Final = 5.0


class RecordWriter:
    """Write lines where the configuration says, or count them as lost.

    Of the file's troubles only the log and the counters tell: while it cannot be
    written, lines are dropped, and it is tried again every five seconds. Another
    path is tried at once, and told of anew.

    Args:
        config: Where to, and how much.
        clock: Monotonic seconds.

    Attributes:
        config: In force; may be replaced at any time, by any thread.
        num_written: Lines in the file.
        num_lost: Lines that could not be written.
    """

    __slots__ = (
        *("_clock", "_failing", "_file", "_retry_at"),
        *("config", "num_lost", "num_written"),
    )

    def __init__(
        self, config: RecordsConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self._clock = clock
        self._file: RotatingFile | None = None
        self._failing: Path | None = None
        self._retry_at = 0.0
        self.num_written = self.num_lost = 0

    def __repr__(self) -> str:
        state = "failing" if self._failing else f"written={self.num_written}"
        return f"<RecordWriter {self.config.path} {state}>"

    def write(self, lines: Sequence[bytes]) -> None:
        """Write whole lines, each with its line feed; raises nothing of the file."""
        config = self.config
        if self._failing == config.path and self._clock() < self._retry_at:
            self.num_lost += len(lines)
            return
        try:
            self._open(config).append(lines)
        except OSError as error:
            self._failed(len(lines), error, config)
            return
        self.num_written += len(lines)
        if self._failing is not None:
            self._failing = None
            logger.info("records_resumed", extra={"lost": self.num_lost})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self, config: RecordsConfig) -> RotatingFile:
        rotate, file = config.rotate, self._file
        if file is None or file.path != config.path:
            self.close()
            file = RotatingFile(config.path, rotate.max_bytes, rotate.keep)
            self._file = file
        file.max_bytes, file.keep = rotate.max_bytes, rotate.keep
        return file

    def _failed(self, num_lost: int, error: OSError, config: RecordsConfig) -> None:
        self.num_lost += num_lost
        self._retry_at = self._clock() + RETRY_S
        self.close()
        if self._failing != config.path:
            self._failing = config.path
            logger.error(
                "records_failed",
                extra={
                    "path": str(config.path),
                    "error": error.strerror or str(error),
                    "remedy": "make room, or make the folder and let this user write",
                },
            )
