"""Access records: their lines, their file, and what happens when it fails."""

import json
import logging
import os
import stat
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from warmroute.proxy.config.records import RecordsConfig, RotateConfig
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.metrics import build_registry
from warmroute.proxy.records import recorder as recorder_module
from warmroute.proxy.records.exposition import RecordsExposition
from warmroute.proxy.records.recorder import Recorder, thinned
from warmroute.proxy.records.rotating_file import RotatingFile
from warmroute.proxy.records.writer import RETRY_S, RecordWriter

MIB = 1 << 20
FAIL_S = 10.0
"""How long a thread of ours may take until a test fails."""


def settled(request_id: str = "r1", grade: str = "exact", **outcome: Any) -> Decision:
    roster = Roster(["a", "b"], ["up"] * 2, ["mirror"] * 2, [0, 1])
    decision = Decision(
        *(request_id, 1790000000.25, "/v1/chat/completions", "smol", grade, 1100),
        *("expected_ttft", roster, [1024, 0], 0, "prefix"),
    )
    ledger = Ledger()
    ledger.open(decision, 1e-5)
    facts: dict[str, Any] = {
        "status": 200,
        "duration_s": 1.5,
        "cached_tokens": 1024,
        "output_tokens": 64,
        "ttft_s": 0.125,
    }
    ledger.settle(decision, **{**facts, **outcome})
    return decision


def looked_up(num_blocks: int = 68, unit: float = 16.0, is_text: bool = False) -> Any:
    """Stand in for a lookup: a chain whose hashes are their own positions."""
    chain = SimpleNamespace(
        hashes=list(range(1, num_blocks + 1)), unit=unit, is_text=is_text
    )
    return SimpleNamespace(chains={16: [chain]})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "access.jsonl"


@pytest.fixture
def start(path: Path) -> Iterator[Any]:
    """Start recorders without a pause for records to gather."""
    started: list[Recorder] = []

    def make(linger_s: float = 0.0, **config: Any) -> Recorder:
        config = {"path": path, **config}
        started.append(Recorder(RecordsConfig.model_validate(config), linger_s))
        return started[-1]

    yield make
    for one in started:
        one.close(FAIL_S)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestRecord:
    def test_holds_the_decision_and_its_outcome(self, start: Any, path: Path) -> None:
        """A line has exactly the fields that replays read."""
        recorder = start()
        recorder.add(settled(), looked_up(), "alice")
        assert recorder.close(FAIL_S)
        (line,) = lines(path)
        session = line.pop("session")
        assert line == {
            "time": 1790000000.25,
            "request_id": "r1",
            "model": "smol",
            "grade": "exact",
            "block_size": 512,
            "blocks": ["0000000000000020", "0000000000000040"],
            "input_length": 1100,
            "output_length": 64,
            "policy": "expected_ttft",
            "chosen": "a",
            "predicted_tokens": 1024,
            "cached_tokens": 1024,
            "status": 200,
            "ttft_s": 0.125,
            "duration_s": 1.5,
        }
        assert len(session) == 16
        assert int(session, 16) >= 0

    def test_the_session_is_hidden_and_recognised(self, start: Any, path: Path) -> None:
        """Equal keys have equal digests, and a surrogate does no harm."""
        recorder = start()
        for session in ("alice", "bob", "alice", None, "\ud800"):
            recorder.add(settled(), looked_up(), session)
        recorder.close(FAIL_S)
        first, second, third, none, odd = (line["session"] for line in lines(path))
        assert first == third != second
        assert none is None
        assert len(odd) == 16
        assert "alice" not in path.read_text()

    def test_a_request_without_a_prompt_is_left_out(
        self, start: Any, path: Path
    ) -> None:
        recorder = start()
        recorder.add(settled(grade="none"), looked_up(), None)
        recorder.close(FAIL_S)
        assert lines(path) == []

    def test_what_an_engine_did_not_tell_is_null(self, start: Any, path: Path) -> None:
        recorder = start()
        nothing = {"cached_tokens": None, "output_tokens": None, "ttft_s": None}
        recorder.add(settled(status=502, **nothing), looked_up(), None)
        recorder.close(FAIL_S)
        (line,) = lines(path)
        assert [line[k] for k in ("output_length", "cached_tokens", "ttft_s")] == (
            [None] * 3
        )
        assert line["status"] == 502

    @given(st.integers(0, 300), st.integers(1, 64), st.integers(1, 1024))
    def test_every_kth_hash_is_kept(self, num: int, unit: int, least: int) -> None:
        """A hash stands for at least as many tokens as asked, and no block is cut."""
        chain = looked_up(num, unit).chains[16][0]
        block_size, blocks = thinned(chain, least)
        stride, rest = divmod(block_size, unit)
        assert rest == 0
        assert least <= block_size < least + unit
        assert list(blocks) == list(range(stride, num + 1, stride))

    def test_text_is_cut_alike_whatever_is_learned(self) -> None:
        """Other bytes a token change the length of a hash, not which hashes."""
        one, other = (looked_up(40, unit, True).chains[16][0] for unit in (64.0, 57.1))
        assert thinned(one, 512) == (512, thinned(other, 512)[1])
        assert thinned(other, 512)[0] == 457

    def test_long_chains_are_thinned_too(self) -> None:
        """Long prompts keep their hashes in an array."""
        chain: Any = SimpleNamespace(
            hashes=array("Q", range(1, 2049)), unit=16.0, is_text=False
        )
        assert len(thinned(chain, 512)[1]) == 64


class TestRotatingFile:
    def test_is_for_its_owner_only(self, path: Path) -> None:
        """Also where the file was there, and open to all."""
        path.write_text("old\n")
        path.chmod(0o644)
        file = RotatingFile(path, MIB, 1)
        file.append([b"new\n"])
        file.close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() == "old\nnew\n"

    @given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 3))
    def test_stays_within_its_bound(
        self, tmp_path_factory: pytest.TempPathFactory, sizes: list[int], keep: int
    ) -> None:
        """No file is over its size, and together they are the newest lines."""
        path = tmp_path_factory.mktemp("rotated") / "r"
        file = RotatingFile(path, 50, keep)
        written = [str(at).encode() * size + b"\n" for at, size in enumerate(sizes)]
        written = [line[-49:] for line in written]
        for at in range(0, len(written), 7):
            file.append(written[at : at + 7])
        file.close()
        names = [f"r.{number}" for number in range(keep, 0, -1)] + ["r"]
        found = {one.name: one.read_bytes() for one in path.parent.iterdir()}
        assert set(found) <= set(names)
        assert all(len(content) <= 50 for content in found.values())
        kept = b"".join(found.get(name, b"") for name in names)
        assert b"".join(written).endswith(kept)
        if found and len(found) <= keep:
            assert kept == b"".join(written)

    def test_a_file_moved_away_is_begun_anew(self, path: Path) -> None:
        """An outer logrotate needs no signal."""
        file = RotatingFile(path, MIB, 0)
        file.append([b"one\n"])
        path.rename(path.with_name("away"))
        file.append([b"two\n"])
        file.close()
        assert path.read_text() == "two\n"
        assert path.with_name("away").read_text() == "one\n"

    def test_a_torn_line_spoils_no_other(self, path: Path) -> None:
        path.write_text('{"time": 1')
        file = RotatingFile(path, MIB, 0)
        file.append([b"{}\n"])
        file.close()
        assert path.read_text().splitlines() == ['{"time": 1', "{}"]

    def test_half_a_batch_is_taken_back(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that fills up within a write leaves whole lines."""
        file = RotatingFile(path, MIB, 0)
        file.append([b"one\n"])
        write = os.write

        def fill_up(fd: int, data: bytes) -> int:
            if len(data) < 4:
                raise OSError(28, "No space left on device")
            return write(fd, data[:3])

        monkeypatch.setattr(os, "write", fill_up)
        with pytest.raises(OSError, match="No space"):
            file.append([b"two\n"])
        monkeypatch.undo()
        file.append([b"three\n"])
        file.close()
        assert path.read_text() == "one\nthree\n"


class TestRecordWriter:
    def test_a_folder_that_comes_back_is_used_again(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is tried again after a while, and what was lost is told."""
        caplog.set_level(logging.INFO)
        now = [0.0]
        config = RecordsConfig(path=tmp_path / "no" / "access.jsonl")
        writer = RecordWriter(config, lambda: now[0])
        writer.write([b"1\n"])
        config.path.parent.mkdir()
        writer.write([b"2\n"])
        assert not config.path.exists()
        now[0] = RETRY_S
        writer.write([b"3\n"])
        writer.close()
        assert config.path.read_text() == "3\n"
        assert (writer.num_written, writer.num_lost) == (1, 2)
        assert caplog.messages == ["records_failed", "records_resumed"]

    def test_another_path_holds_from_the_next_line_on(self, path: Path) -> None:
        writer = RecordWriter(RecordsConfig(path=path))
        writer.write([b"1\n"])
        other = path.with_name("other.jsonl")
        writer.config = RecordsConfig(path=other)
        writer.write([b"2\n"])
        writer.close()
        assert (path.read_text(), other.read_text()) == ("1\n", "2\n")

    def test_another_path_does_not_inherit_a_failure(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A second bad path is told as the first; a good one is written at once."""
        now = [0.0]
        writer = RecordWriter(RecordsConfig(path=Path("/dev/full")), lambda: now[0])
        writer.write([b"1\n"])
        missing = path.parent / "no" / "access.jsonl"
        writer.config = RecordsConfig(path=missing)
        writer.write([b"2\n"])
        told = [record.__dict__["path"] for record in caplog.records]
        assert told == ["/dev/full", str(missing)]
        writer.config = RecordsConfig(path=path)
        writer.write([b"3\n"])
        writer.close()
        assert path.read_text() == "3\n"
        assert (writer.num_written, writer.num_lost) == (1, 2)

    def test_other_bounds_hold_from_the_next_line_on(self, path: Path) -> None:
        writer = RecordWriter(RecordsConfig(path=path))
        writer.write([bytes(MIB - 1) + b"\n"])
        rotate = RotateConfig(max_bytes=MIB, keep=1)
        writer.config = RecordsConfig(path=path, rotate=rotate)
        writer.write([b"2\n"])
        writer.close()
        assert path.read_text() == "2\n"
        assert path.with_name("access.jsonl.1").stat().st_size == MIB


class TestRecorder:
    def test_a_full_disk_is_told_once_and_counted(
        self, start: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """/dev/full refuses every write, as a full disk does."""
        recorder = start(path="/dev/full")
        for number in range(3):
            recorder.add(settled(f"r{number}"), looked_up(), None)
        assert recorder.close(FAIL_S)
        assert caplog.messages.count("records_failed") == 1
        assert (recorder.writer.num_written, recorder.writer.num_lost) == (0, 3)

    def test_a_missing_folder_is_told_at_the_start(
        self, start: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        start(path=tmp_path / "no" / "access.jsonl").close(FAIL_S)
        assert caplog.messages == ["records_failed"]

    def test_a_missing_folder_is_told_at_a_reload(
        self, start: Any, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No record need come first."""
        recorder = start()
        recorder.configure(RecordsConfig(path=path.parent / "no" / "access.jsonl"))
        assert recorder.close(FAIL_S)
        assert caplog.messages == ["records_failed"]

    def test_a_full_queue_drops_and_counts(
        self, start: Any, monkeypatch: pytest.MonkeyPatch, path: Path
    ) -> None:
        """What does not fit is gone; what fits is written."""
        monkeypatch.setattr(recorder_module, "MAX_QUEUED", 2)
        recorder = start(60.0)
        for number in range(5):
            recorder.add(settled(f"r{number}"), looked_up(), None)
        assert recorder.num_overflown == 3
        assert recorder.close(FAIL_S)
        assert [line["request_id"] for line in lines(path)] == ["r0", "r1"]

    def test_many_hashes_fill_the_queue_too(
        self, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Memory is bounded by hashes, not by records alone."""
        monkeypatch.setattr(recorder_module, "MAX_QUEUED_BLOCKS", 4)
        recorder = start(60.0)
        for _ in range(5):
            recorder.add(settled(), looked_up(), None)
        assert recorder.num_overflown == 3


def test_they_are_counted_in_metrics(start: Any) -> None:
    """Written and dropped ones; zeros while nothing records."""
    recorder = start()
    recorder.add(settled(), looked_up(), None)
    recorder.close(FAIL_S)
    recorder.num_overflown, recorder.writer.num_lost = 2, 3
    texts = [
        generate_latest(build_registry(RecordsExposition(lambda one=one: one))).decode()
        for one in (recorder, None)
    ]
    dropped = "warmroute_access_records_dropped_total"
    assert "warmroute_access_records_written_total 1.0" in texts[0]
    assert f'{dropped}{{reason="queue_full"}} 2.0' in texts[0]
    assert f'{dropped}{{reason="write_failed"}} 3.0' in texts[0]
    assert "warmroute_access_records_written_total 0.0" in texts[1]
