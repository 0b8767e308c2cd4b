"""Traces are read as they are, or refused with the line and what is wrong there."""

import gzip
import json
import shutil
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.replay_rig import row, write_trace

from warmroute.policies.errors import ConfigError
from warmroute.proxy.replay.mooncake import read_mooncake
from warmroute.proxy.replay.trace import TraceError

ZSTD = shutil.which("zstd")
needs_zstd = pytest.mark.skipif(ZSTD is None, reason="needs the zstd program")

ROWS = (row(5000, 1100, [1, 2, 3], 7), row(5000, 512, [1]), row(6500.5, 3, [9], 0))
TEXT = "".join(json.dumps(one) + "\n" for one in ROWS).encode()


def pack(data: bytes) -> bytes:
    assert ZSTD is not None
    done = subprocess.run([ZSTD, "-q"], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout


def refusal(path: Path) -> str:
    """Return what is said of *path*, behind its name."""
    with pytest.raises(TraceError) as caught:
        read_mooncake(path)
    assert isinstance(caught.value, ConfigError)
    return str(caught.value).removeprefix(str(path))


class TestGoodTraces:
    def test_times_lengths_and_full_blocks_are_read(self, tmp_path: Path) -> None:
        trace = read_mooncake(write_trace(tmp_path / "t.jsonl", *ROWS))
        assert [
            (one.time_s, one.prompt_tokens, one.output_tokens, one.blocks)
            for one in trace.requests
        ] == [(0.0, 1100, 7, (1, 2)), (0.0, 512, 1, (1,)), (1.5005, 3, 0, ())]
        assert (trace.block_size, trace.prompt_tokens) == (512, 1615)
        assert trace.duration_s == 1.5005

    def test_the_partial_block_may_be_left_out(self, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "t.jsonl", row(0, 1100, [1, 2]), row(0, 9, []))
        assert [one.blocks for one in read_mooncake(path).requests] == [(1, 2), ()]

    def test_blank_lines_and_a_missing_last_newline_are_fine(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"\n" + TEXT.replace(b"\n", b"\r\n\n").rstrip())
        assert len(read_mooncake(path).requests) == 3

    def test_gzip_is_unpacked_member_by_member(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.gz"
        path.write_bytes(gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:]))
        assert len(read_mooncake(path).requests) == 3

    @needs_zstd
    def test_zstandard_is_unpacked_frame_by_frame(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.zst"
        path.write_bytes(pack(TEXT[:50]) + pack(TEXT[50:]))
        assert len(read_mooncake(path).requests) == 3


BAD_LINES = [
    (b'{"timestamp": 0, "input_len', "not JSON (Input data was truncated); is the"),
    (b"nonsense", "not JSON ("),
    (b'"\xff"', "not JSON ("),
    (b"[" * 100_000, "not JSON ("),
    (b"[1]", "[1] is not an object with timestamp, input_length"),
    (b'{"timestamp": 9000, "input_length": 1, "output_length": 1}', "hash_ids missing"),
    (b"{}", "timestamp and input_length and output_length and hash_ids missing"),
]

BAD_ROWS = [
    (row(4999, 1, []), "time goes backwards: timestamp 4999 ms follows 5000 ms"),
    (row(9000, -5, []), "input_length is -5 (allowed: whole numbers, 1 to 10"),
    (row(9000, 0, []), "input_length is 0 (allowed"),
    (row(9000, 1, [], -1), "output_length is -1 (allowed: whole numbers, 0 to 10"),
    (row(9000, 1, [], 10**400), "output_length is "),
    (row(9000, 10**400, [1]), "input_length is "),
    (row(10**400, 1, []), "timestamp is "),
    (row(9000, 1, []) | {"input_length": 1.5}, "input_length is 1.5"),
    (row(9000, 1, []) | {"input_length": True}, "input_length is True"),
    (row(9000, 1, []) | {"timestamp": "9"}, "timestamp is '9' (allowed: millisec"),
    (row(9000, 1, []) | {"timestamp": False}, "timestamp is False"),
    (row(9000, 1, []) | {"hash_ids": None}, "hash_ids is None (allowed: a list"),
    (row(9000, 1, []) | {"hash_ids": ["a"]}, "hash_ids is ['a']"),
    (row(9000, 1100, [1]), "1 hash_ids for 1100 tokens (needed: 3 of 512 tokens"),
    (row(9000, 1024, [1, 2, 3]), "3 hash_ids for 1024 tokens (needed: 2 of 512"),
]


class TestBadTraces:
    @pytest.mark.parametrize(("line", "complaint"), BAD_LINES)
    def test_a_bad_line_is_named(
        self, line: bytes, complaint: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(b"\n" + TEXT.splitlines()[0] + b"\n" + line)
        assert refusal(path).startswith(f":3: {complaint}")

    @pytest.mark.parametrize(("bad", "complaint"), BAD_ROWS)
    def test_a_bad_value_is_named(
        self, bad: dict[str, Any], complaint: str, tmp_path: Path
    ) -> None:
        said = refusal(write_trace(tmp_path / "t.jsonl", ROWS[0], bad, ROWS[2]))
        assert said.startswith(f":2: {complaint}")
        assert len(said) < 200

    @pytest.mark.parametrize(
        ("name", "data"),
        [("t.jsonl", b""), ("t.jsonl", b" \n\n"), ("t.gz", gzip.compress(b""))],
    )
    def test_an_empty_file_is_refused(
        self, name: str, data: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / name
        path.write_bytes(data)
        assert refusal(path) == ":1: empty (needed: one JSON object a line)"

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        said = refusal(tmp_path / "no.jsonl")
        assert said == ": cannot be read: No such file or directory"

    @pytest.mark.parametrize(
        ("name", "data", "said"),
        [
            ("t.jsonl", gzip.compress(TEXT), "plain text, the data begins as .gz does"),
            ("t.jsonl", b"\x28\xb5\x2f\xfd", "plain text, the data begins as .zst"),
            ("t.gz", TEXT, ".gz, the data begins as neither .gz nor .zst does"),
            ("t.zst", TEXT, ".zst, the data begins as neither .gz nor .zst does"),
            ("t.zst", gzip.compress(TEXT), ".zst, the data begins as .gz does"),
        ],
    )
    def test_wrong_compression_is_refused(
        self, name: str, data: bytes, said: str, tmp_path: Path
    ) -> None:
        path = tmp_path / name
        path.write_bytes(data)
        wanted = f":1: wrong compression: the name says {said}"
        assert refusal(path).startswith(wanted)

    def test_cut_gzip_names_the_line_it_ends_in(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.gz"
        path.write_bytes(gzip.compress(TEXT, compresslevel=0)[:-40])
        assert refusal(path) == ":3: the packed data is cut short behind this line"

    def test_damaged_gzip_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.gz"
        path.write_bytes(gzip.compress(TEXT)[:10] + b"\xff" * 20)
        assert refusal(path).startswith(":1: damaged gzip data: ")

    @needs_zstd
    def test_cut_zstandard_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.zst"
        path.write_bytes(pack(TEXT)[:-9])
        assert refusal(path).startswith(":1: damaged or cut Zstandard data: ")

    @given(st.binary(max_size=200))
    @settings(max_examples=100, deadline=None)
    def test_any_bytes_are_read_or_refused(
        self, tmp_path_factory: pytest.TempPathFactory, data: bytes
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "any.jsonl"
        path.write_bytes(TEXT + data)
        said = ""
        try:
            assert len(read_mooncake(path).requests) >= 3
        except TraceError as error:
            said = str(error)
        assert said.startswith(f"{path}:") or not said


class FakeZstandard(types.ModuleType):
    """Stands in for the package ``zstandard``: its frames are zlib data."""

    ZstdError = zlib.error

    class ZstdDecompressor:
        def decompressobj(self) -> "zlib._Decompress":
            return Skipping()  # type: ignore[return-value]


class Skipping:
    """Stands in for an unpacker: passes over the four bytes that name the format."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj()

    def decompress(self, data: bytes) -> bytes:
        return self.inner.decompress(data[4:])

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data


def fake_pack(data: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd" + zlib.compress(data)


class TestWithoutTheProgram:
    @pytest.fixture(autouse=True)
    def _no_program(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")

    @pytest.fixture
    def package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "zstandard", FakeZstandard("zstandard"))

    @pytest.mark.usefixtures("package")
    def test_the_package_unpacks(self, tmp_path: Path) -> None:
        path = tmp_path / "t.zst"
        path.write_bytes(fake_pack(TEXT[:50]) + fake_pack(TEXT[50:]))
        assert len(read_mooncake(path).requests) == 3

    @pytest.mark.usefixtures("package")
    def test_the_package_finds_cut_and_damaged_data(self, tmp_path: Path) -> None:
        path = tmp_path / "t.zst"
        path.write_bytes(fake_pack(TEXT)[:-3])
        assert refusal(path).endswith(": the packed data is cut short behind this line")
        path.write_bytes(b"\x28\xb5\x2f\xfd nonsense")
        assert refusal(path).startswith(":1: damaged Zstandard data: ")

    def test_without_both_the_remedy_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "zstandard", None)
        path = tmp_path / "t.zst"
        path.write_bytes(fake_pack(TEXT))
        said = refusal(path)
        assert said.startswith(": cannot be unpacked: neither the program `zstd` nor")
        assert "install one of them" in said
