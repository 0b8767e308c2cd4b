"""The public data of the bench, read from a folder as they are published."""

import gzip
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class NoData(Exception):
    """A file of the data is missing or cannot be read; says which."""


class Corpora:
    """Find and read the files, plain, ``.gz`` or ``.zst``.

    Args:
        folder: Where they are, at any depth.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def text(self, name: str) -> str:
        """Return the text of the file *name*, whatever it is packed with."""
        for path in sorted(self._folder.rglob(f"{name}*")):
            if path.name in (name, f"{name}.gz", f"{name}.zst"):
                return _read(path)
        raise NoData(
            f"no {name} (nor .gz, .zst) under {self._folder}; README.md says where "
            "the data come from"
        )

    def records(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of the file *name*, one a line."""
        for line in self.text(name).splitlines():
            yield json.loads(line)


def _read(path: Path) -> str:
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    if path.suffix != ".zst":
        return path.read_text()
    if shutil.which("zstd") is None:
        raise NoData(f"{path} needs the program zstd; install it or unpack the file")
    done = subprocess.run(["zstd", "-dc", path], capture_output=True, check=True)
    return done.stdout.decode()
