"""The engine's address, its end, and its command line."""

import argparse
import socket
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from warmroute.adapters.embedded import command
from warmroute.adapters.embedded.command import EngineCommand
from warmroute.adapters.embedded.server.listener import Listener
from warmroute.policies.errors import ConfigError, WarmrouteError
from warmroute.policies.eviction.registry import evictions


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    EngineCommand().add_arguments(parser)
    return parser.parse_args(arguments)


async def test_a_listener_refuses_until_it_starts() -> None:
    """The address is taken at once, and answered on from the start to the end."""
    listener = Listener("127.0.0.1", 0)
    app = web.Application()

    async def here(request: web.Request) -> web.Response:
        return web.Response(text="here")

    app.router.add_get("/", here)
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(listener.url)
        await listener.start(app)
        async with session.get(listener.url) as response:
            assert await response.text() == "here"
        await listener.close()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(listener.url)
    await listener.close()


def test_a_taken_port_is_told_at_once() -> None:
    """The error names the address and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WarmrouteError, match=rf"127.0.0.1:{port}: address alre.*"):
            Listener("127.0.0.1", port)


async def test_a_port_taken_meanwhile_is_told_at_the_start() -> None:
    """Two may hold an address before either listens; the second one fails."""
    first = Listener("127.0.0.1", 0)
    second = Listener("127.0.0.1", first.port)
    await first.start(web.Application())
    with pytest.raises(WarmrouteError, match="address already in use"):
        await second.start(web.Application())
    await first.close()
    await second.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", ""])
def test_an_unknown_host_is_bad_usage(host: str) -> None:
    """The error names the host; an empty one would mean every interface."""
    with pytest.raises(ConfigError, match="--host"):
        Listener(host, 0)


def test_an_address_of_another_machine_is_refused() -> None:
    """The error says what to change."""
    with pytest.raises(WarmrouteError, match="with --host"):
        Listener("192.0.2.1", 0)


def test_the_defaults_of_the_command() -> None:
    """They are those of the documentation."""
    options = parse()
    assert (options.host, options.port, options.model) == ("127.0.0.1", 8101, None)
    assert (options.num_blocks, options.block_size) == (512, 16)
    assert (options.eviction, options.kv_events) == ("lru", None)


def test_help_names_every_eviction_policy_and_every_default() -> None:
    parser = argparse.ArgumentParser()
    EngineCommand().add_arguments(parser)
    told = " ".join(parser.format_help().split())
    assert f"policy: {', '.join(evictions.names())}, or" in told
    for action in parser._actions:
        if action.default not in (None, "", argparse.SUPPRESS):
            assert f"({action.default}" in str(action.help), action.dest
    assert parse("--kv-events").kv_events == "tcp://*:5557"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--num-blocks", "0"),
        ("--block-size", "x"),
        ("--threads", "0"),
        ("--max-model-len", "1"),
        ("--log-level", "loud"),
        ("--served-model-name", ""),
        ("--served-model-name", "good", " "),
        ("--no-such-flag",),
    ],
)
def test_wrong_flags_are_bad_usage(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2 and the message names the flag."""
    with pytest.raises(SystemExit) as ended:
        parse(*arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model", "/no/such/model"), 2, "--model /no/such/model: no such file"),
        (("--kv-events-replay", "tcp://*:1"), 2, "needs --kv-events"),
        (("--threads", "2"), 2, "NumPy is loaded already"),
    ],
)
def test_what_cannot_work_is_told_in_one_line(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bad usage is 2; the message says what to change."""
    monkeypatch.setitem(sys.modules, "numpy", sys)
    assert EngineCommand().run(parse(*arguments)) == code
    error = capsys.readouterr().err
    assert error.startswith("warmroute engine: ")
    assert error.count("\n") == 1
    assert words in error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ImportError("no numpy", name="numpy"), 2, "pip install 'warmroute[embedded]'"),
        (ImportError("x", name="zmq.asyncio"), 2, "package 'zmq' is missing"),
        (OSError(28, "No space left on device"), 1, "no space left on device"),
        (MemoryError("unable to allocate 8 TiB"), 1, "unable to allocate 8 tib"),
        (WarmrouteError("no luck"), 1, "no luck"),
        (ConfigError("no sense"), 2, "no sense"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_failure_has_an_exit_code_and_one_line(
    error: BaseException,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever goes wrong at the start, there is no traceback."""

    def fail(options: Any) -> None:
        raise error

    monkeypatch.setattr(command, "_check", fail)
    assert EngineCommand().run(parse()) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said


def test_a_foreign_import_error_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the extra would have installed is explained away."""

    def fail(options: Any) -> None:
        raise ImportError("no module named nonsense", name="nonsense")

    monkeypatch.setattr(command, "_check", fail)
    with pytest.raises(ImportError, match="nonsense"):
        EngineCommand().run(parse())


def test_the_command_needs_no_numpy_for_its_help() -> None:
    """Help and flags work before the extra is installed."""
    code = (
        "import argparse, sys\n"
        "from warmroute.adapters.embedded.command import EngineCommand\n"
        "EngineCommand().add_arguments(argparse.ArgumentParser())\n"
        "print({'numpy', 'aiohttp', 'zmq'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "set()\n", done.stderr


def test_a_missing_package_names_the_extra() -> None:
    """Without NumPy there is one clear line and exit code 2."""
    code = (
        "import argparse, sys\n"
        "sys.modules['numpy'] = None\n"
        "from warmroute.adapters.embedded.command import EngineCommand\n"
        "parser = argparse.ArgumentParser()\n"
        "EngineCommand().add_arguments(parser)\n"
        "sys.exit(EngineCommand().run(parser.parse_args([])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr == (
        "warmroute engine: package 'numpy' is missing; "
        "pip install 'warmroute[embedded]'\n"
    )
