"""The lines of a file: plain, or packed by gzip or Zstandard."""

import importlib
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Final

from warmroute.proxy.replay.trace import TraceError

_MAGIC: Final = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
_GZIP_WINDOW: Final = 31  # zlib's word for: a gzip header, any window
_REMEDY: Final = (
    "cannot be unpacked: neither the program `zstd` nor the Python package "
    "`zstandard` is installed; install one of them, or unpack it elsewhere and name "
    "the plain file"
)
_CUT_SHORT: Final = "the packed data is cut short behind this line"


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of *path*, unpacked as the end of its name says.

    Raises:
        TraceError: The file cannot be read, is empty, is packed in another way than
            its name says, or is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    _check_packing(path, data)
    fault = ""
    if path.suffix == ".gz":
        data, fault = _unpack_gzip(data)
    elif path.suffix == ".zst":
        data, fault = _unpack_zstandard(path, data)
    if fault:
        number = data.count(b"\n") + 1
        raise TraceError(f"{path}:{number}: {fault}")
    if not data.strip():
        raise TraceError(f"{path}:1: empty (needed: one JSON object a line)")
    return data.splitlines()


def _check_packing(path: Path, data: bytes) -> None:
    found = next((k for k, magic in _MAGIC.items() if data.startswith(magic)), "")
    named = path.suffix if path.suffix in _MAGIC else ""
    if data and found != named:
        raise TraceError(
            f"{path}:1: wrong compression: the name says {named or 'plain text'}, the "
            f"data begins as {found or 'neither .gz nor .zst'} does; rename the file"
        )


def _unpack_gzip(data: bytes) -> tuple[bytes, str]:
    """Return what can be unpacked, and what is wrong with the rest."""
    parts: list[bytes] = []
    while data:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        try:
            parts.append(unpacker.decompress(data))
        except zlib.error as error:
            return b"".join(parts), f"damaged gzip data: {error}"
        if not unpacker.eof:
            return b"".join(parts), _CUT_SHORT
        data = unpacker.unused_data
    return b"".join(parts), ""


def _unpack_zstandard(path: Path, data: bytes) -> tuple[bytes, str]:
    program = shutil.which("zstd")
    if program is None:
        return _unpack_by_module(path, data)
    done = subprocess.run(  # noqa: S603  # the command has no foreign part
        [program, "--decompress", "--stdout", "--quiet"],
        input=data,
        capture_output=True,
        check=False,
    )
    if not done.returncode:
        return done.stdout, ""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return done.stdout, f"damaged or cut Zstandard data: {said[-1] if said else '?'}"


def _unpack_by_module(path: Path, data: bytes) -> tuple[bytes, str]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError as error:
        raise TraceError(f"{path}: {_REMEDY}") from error
    parts: list[bytes] = []
    while data:
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(unpacker.decompress(data))
        except zstandard.ZstdError as error:
            return b"".join(parts), f"damaged Zstandard data: {error}"
        if not unpacker.eof:
            return b"".join(parts), _CUT_SHORT
        data = unpacker.unused_data
    return b"".join(parts), ""
