"""A process whose log nobody reads goes on serving, and ends when it is asked."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from conformance.rig import answer_ok, chat, post
from integration import served
from integration.served import Served, Stage, entry

stage = served.stage


async def test_a_reader_that_stands_still_stops_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    """Requests, probes of life and the end: none waits for the log."""
    engine = await stage.engine(answer_ok)
    proxy = Served(tmp_path / "config.yaml", {"backends": [entry("a", engine)]})
    proxy.write(log={"level": "debug"})
    reader, target = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmroute.proxy.cli", "serve"),
        *("-c", str(proxy.path)),
        stdout=target,
    )
    os.close(target)
    proxy._process = process
    stage.started.append(proxy)
    try:
        while not proxy.count("backend_up"):
            text = await asyncio.to_thread(os.read, reader, 1 << 16)
            proxy.log += [json.loads(line) for line in text.splitlines()]
        async with asyncio.timeout(60):
            client = await proxy.connect()
            for _ in range(1000):
                await client.send(post(chat()))
                assert (await client.receive()).status == 200
            assert (await proxy.get("/livez")).status == 200
            proxy.signal(signal.SIGTERM)
            assert await proxy.ended() == 0
    finally:
        os.close(reader)
