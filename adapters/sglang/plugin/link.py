"""The private channel between SGLang's server and its scheduler.

Both run as one user on one machine, so the door to it is a file: an IPC socket of mode
0600 in a folder of mode 0700 that the server makes, and that goes when the server does.
Nothing else reaches it, and whoever does has passed the door already.
"""

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from warmroute.adapters.kv_plugin.jobs import Answer
from warmroute.adapters.sglang.plugin.names import SOCKET_VARIABLE

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
_MODE = stat.S_IRUSR | stat.S_IWUSR
_NAME = "scheduler"

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode
_decode_call = msgspec.msgpack.Decoder(tuple[int, str, dict[str, object]]).decode

Respond = Callable[[int, str, dict[str, object]], Answer]


def make_socket_folder() -> str:
    """Make the folder of the socket, and tell processes started from now on."""
    folder = tempfile.mkdtemp(prefix="warmroute-sglang-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    os.environ[SOCKET_VARIABLE] = str(Path(folder) / _NAME)
    return folder


class SchedulerLink:
    """Reach the scheduler from the server (``EngineCalls`` of `CoreCalls`).

    Args:
        path: The socket's.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"<SchedulerLink {self._path}>"

    async def call_utility_all_async(self, method: str, *args: object) -> list[object]:
        """Have one call answered by the scheduler, between two of its steps."""
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(f"ipc://{self._path}")
            await socket.send(_encode(args))
            return [_decode(await socket.recv())]
        finally:
            socket.close(linger=0)


class SchedulerSocket:
    """Take calls in the scheduler's thread, one at a time and never waiting.

    Args:
        path: Where to listen.
        respond: Performs a call.
    """

    __slots__ = ("_respond", "_socket")

    def __init__(self, path: str, respond: Respond) -> None:
        self._respond = respond
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.bind(f"ipc://{path}")
        os.chmod(path, _MODE)

    def __repr__(self) -> str:
        return f"<SchedulerSocket {self._socket.getsockopt_string(zmq.LAST_ENDPOINT)}>"

    def wake(self, sleeper: Any) -> None:
        """Have an idle scheduler wake up when a call comes in."""
        sleeper.poller.register(self._socket, zmq.POLLIN)

    def close(self) -> None:
        """Listen no more."""
        self._socket.close(linger=0)

    def serve(self) -> bool:
        """Answer one call if there is one; returns whether there was."""
        if not cast(int, self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return False
        caller, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
        call = _read(frames)
        if call is not None:
            answer = _encode(self._respond(*call))
            self._socket.send_multipart((caller, answer), zmq.NOBLOCK)
        return True


def _read(frames: list[bytes]) -> tuple[int, str, dict[str, object]] | None:
    try:
        return _decode_call(b"".join(frames))
    except msgspec.DecodeError:
        return None
