"""The child processes of the demo, when their parent is killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warmroute.proxy.demo.child import free_port

PARENT = """
import asyncio, signal, sys
from pathlib import Path
from warmroute.proxy.demo.child import Child

async def main():
    child = Child("idle", Path(sys.argv[1]))
    await child.start([sys.executable, "-c", "import signal; signal.pause()"])
    print(child._process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is of Linux")
def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        watched = os.pidfd_open(child)
        try:
            parent.send_signal(signal.SIGKILL)
            assert select.select([watched], [], [], 20)[0], "the child lives on"
        finally:
            os.close(watched)


def test_no_port_is_given_twice() -> None:
    """An engine that is still starting listens on its own only later."""
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == len(ports)
