"""Access records of a running proxy: written, reloaded, and never in the way."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.rig import Rig, StartRig, answer_ok, chat, post

from warmroute.proxy.replay.traces import read_trace

SECRET = "the prompt of nobody else"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def ask(rig: Rig, request_id: str) -> None:
    body = chat(SECRET * 200, session_id="carol")
    reply = await rig.request(post(body, extra=f"x-request-id: {request_id}\r\n"))
    assert reply.status == 200


async def reload(rig: Rig, **changes: Any) -> None:
    source = rig.app.config._source
    assert source is not None
    assert source.path is not None
    settings = yaml.safe_load(source.path.read_text())
    source.path.write_text(yaml.safe_dump({**settings, **changes}))
    await rig.app.reloader.reload()


async def test_a_request_leaves_a_line_without_its_text(
    start_rig: StartRig, tmp_path: Path
) -> None:
    """Closing the application flushes; neither text nor session is in the file."""
    rig = await start_rig(answer_ok, records="access.jsonl")
    await ask(rig, "r1")
    await ask(rig, "r2")
    await rig.app.close()
    path = tmp_path / "access.jsonl"
    first, second = lines(path)
    assert (first["request_id"], second["request_id"]) == ("r1", "r2")
    assert first["blocks"] == second["blocks"] != []
    assert first["session"] == second["session"]
    assert (first["status"], first["input_length"], first["output_length"]) == (
        *(200, 9),
        1,
    )
    text = path.read_text()
    assert "nobody" not in text
    assert "carol" not in text


async def test_replay_reads_what_was_written_without_a_tokenizer(
    start_rig: StartRig, tmp_path: Path
) -> None:
    """Bytes a token are learned meanwhile, so that block sizes differ by line."""
    rig = await start_rig(answer_ok, records="access.jsonl")
    for number in range(4):
        await ask(rig, f"r{number}")
    await rig.app.close()
    path = tmp_path / "access.jsonl"
    assert len({line["block_size"] for line in lines(path)}) > 1
    trace = read_trace(str(path))
    assert len(trace.requests) == 4
    assert trace.prompt_tokens == 4 * 9


async def test_a_reload_turns_them_on_moves_them_and_turns_them_off(
    start_rig: StartRig, tmp_path: Path
) -> None:
    rig = await start_rig(answer_ok)
    await ask(rig, "r1")
    await reload(rig, records={"path": "one.jsonl"})
    await ask(rig, "r2")
    recorder = rig.app.onlookers.recorder
    assert recorder is not None
    await rig.until(lambda: recorder.writer.num_written == 1, "written")
    await reload(rig, records={"path": "two.jsonl", "tokens_per_hash": 64})
    await ask(rig, "r3")
    await reload(rig, records=None)
    await ask(rig, "r4")
    assert rig.app.onlookers.recorder is None
    assert [one["request_id"] for one in lines(tmp_path / "one.jsonl")] == ["r2"]
    (line,) = lines(tmp_path / "two.jsonl")
    assert line["request_id"] == "r3"
    assert len(line["blocks"]) > 8


async def test_a_full_disk_fails_no_request(
    start_rig: StartRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered as before; the log says it once."""
    rig = await start_rig(answer_ok, records="/dev/full")
    for number in range(20):
        await ask(rig, f"r{number}")
    await rig.app.close()
    assert caplog.messages.count("records_failed") == 1
