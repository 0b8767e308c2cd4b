"""`why`, `stats` and `top`, asking a running proxy by its admin port."""

import asyncio
import json
import os
import pty
import sys

import pytest
from conformance.rig import PATIENCE_S, Rig, StartRig, answer_ok, chat, post

from warmroute.proxy.cli import main

Capture = pytest.CaptureFixture[str]


async def started(start_rig: StartRig, **config: str) -> tuple[Rig, str]:
    rig = await start_rig(answer_ok, admin="127.0.0.1:0", **config)
    assert rig.app.administration.listening is not None
    return rig, "http://{}:{}".format(*rig.app.administration.listening)


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


async def ask(rig: Rig, request_id: str) -> None:
    extra = f"x-request-id: {request_id}\r\n"
    assert (await rig.request(post(chat(), extra=extra))).status == 200


async def test_why_explains_a_request_by_its_id(
    start_rig: StartRig, capsys: Capture
) -> None:
    rig, admin = await started(start_rig)
    await ask(rig, "r-1")
    await ask(rig, "r-2")
    assert await run("why", "r-1", "--admin", admin) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("r-1  m  9 prompt tokens (estimated)  ")
    assert "sent to b0 because it had the least to do" in shown
    assert await run("why", "--last", "--json", "--admin", admin) == 0
    assert json.loads(capsys.readouterr().out)["request_id"] == "r-2"


async def test_what_is_not_kept_is_told(start_rig: StartRig, capsys: Capture) -> None:
    _, admin = await started(start_rig)
    assert await run("why", "--last", "--admin", admin) == 1
    assert "has not routed a request yet" in capsys.readouterr().err
    assert await run("why", "a/b", "--admin", admin) == 1
    assert "no decision of request 'a/b' is kept" in capsys.readouterr().err


async def test_a_path_that_is_not_there_tells_what_to_check(
    start_rig: StartRig, capsys: Capture
) -> None:
    """Such as that of the embedded engine, behind the data port."""
    _, admin = await started(start_rig)
    assert await run("stats", "--admin", f"{admin}/other") == 1
    assert "not found; check that --admin is the admin" in capsys.readouterr().err


async def test_stats_and_a_piped_top_print_once(
    start_rig: StartRig, capsys: Capture
) -> None:
    rig, admin = await started(start_rig)
    await ask(rig, "r-1")
    for command in ("stats", "top"):
        assert await run(command, "--admin", admin) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("paid twice  0.0 %  (0 of 9 prompt tokens)")
        assert "b0       openai  up" in shown
        assert await run(command, "--json", "--admin", admin) == 0
        assert json.loads(capsys.readouterr().out)["tokens"]["prompt"] == 9


async def test_the_token_comes_from_the_environment(
    start_rig: StartRig, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, admin = await started(start_rig, admin_token="sesame")
    assert await run("stats", "--admin", admin) == 1
    assert "it wants its token; set WARMROUTE_ADMIN_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("WARMROUTE_ADMIN_TOKEN", "sesame")
    assert await run("stats", "--admin", admin) == 0


async def test_the_data_port_is_no_admin_port(
    start_rig: StartRig, capsys: Capture
) -> None:
    """Its answers are not taken for something else."""
    rig, _ = await started(start_rig)
    assert await run("stats", "--admin", f"127.0.0.1:{rig.port}") == 1
    assert "--admin" in capsys.readouterr().err


async def test_top_moves_until_q_and_gives_the_terminal_back(
    start_rig: StartRig,
) -> None:
    """On a real terminal: drawn at least twice, then left as it was."""
    _, admin = await started(start_rig)
    ours, theirs = pty.openpty()
    command = ("-m", "warmroute.proxy.cli", "top", "--admin", admin)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    try:
        shown = await asyncio.wait_for(_read_until(ours, b"tokens/s"), PATIENCE_S)
        assert shown.count(b"paid twice") >= 2
        os.write(ours, b"q")
        await asyncio.wait_for(_read_until(ours, b"\x1b[?1049l"), PATIENCE_S)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


async def _read_until(terminal: int, mark: bytes) -> bytes:
    shown = b""
    while mark not in shown:
        shown += await asyncio.to_thread(os.read, terminal, 4096)
    return shown
