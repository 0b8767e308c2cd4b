"""The demo after its table: what it tells works, and Ctrl-C is its good end."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from itertools import takewhile
from pathlib import Path

from warmroute.proxy.demo.child import free_port
from warmroute.proxy.demo.front import Front, Setup
from warmroute.proxy.demo.standing import standing

_DEMO = (
    *("demo", "--model", "tiny", "--policy", "expected_ttft"),
    *("--conversations", "1", "--max-tokens", "1"),
)
_CLI = (sys.executable, "-m", "warmroute.proxy.cli")


def test_what_stays_up_has_seen_the_load_and_ends_well(tmp_path: Path) -> None:
    """The printed commands reach the front that was played through."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*_CLI, *_DEMO], stdout=subprocess.PIPE, text=True, env=environ
    ) as demo:
        alarm = threading.Timer(120, demo.kill)
        alarm.start()
        try:
            assert demo.stdout is not None
            lines = list(takewhile("Ctrl-C ends it\n".__ne__, demo.stdout))
            told = {line.split()[0]: line.split() for line in lines if line.strip()}
            admin = told["dashboard"][1]
            (why,) = (line for line in lines if " why --last --admin " in line)
            _, *words = shlex.split(why)
            done = subprocess.run(
                [*_CLI, *words], capture_output=True, text=True, check=True
            )
            assert "prompt tokens" in done.stdout
            words = ["stats", "--json", "--admin", f"{admin}api/state"]
            done = subprocess.run(
                [*_CLI, *words], capture_output=True, text=True, check=True
            )
            assert json.loads(done.stdout)["tokens"]["prompt"] > 0
            demo.send_signal(signal.SIGINT)
            assert demo.wait() == 0
        finally:
            alarm.cancel()
            demo.kill()


def test_a_port_that_was_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        front = Front(tmp_path / "log", Setup(ports=(port, 0)))
        text = standing("random", front, [], "tiny")
    assert f"not used: port {port}\n" in text
    assert f":{port}" not in text
    assert f"why --last --admin {front.admin_url}\n" in text


def test_a_wanted_port_is_taken_where_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port
