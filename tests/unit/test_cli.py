"""The command line: what is printed where, and the exit codes."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from warmroute.policies.errors import BackendUnavailable, ConfigError
from warmroute.policies.registry import Registry
from warmroute.proxy.cli import build_parser, main
from warmroute.proxy.command import Command
from warmroute.proxy.config import Config

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("backends: [http://a, http://b]\npolicy: session\n")
    return path


class FakeApp(types.ModuleType):
    """Stands in for the composition root and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__("warmroute.proxy.app")
        self.config: Config | None = None
        self.error: Exception | None = None

    def run(self, config: Config, load: Callable[[], Config]) -> int:
        if self.error:
            raise self.error
        assert load() == config
        self.config = config
        return 0


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    fake = FakeApp()
    monkeypatch.setitem(sys.modules, "warmroute.proxy.app", fake)
    return fake


class TestServe:
    def test_runs_the_file_with_flags_on_top(
        self, config_file: Path, app: FakeApp
    ) -> None:
        arguments = ["serve", "-c", str(config_file), "--listen", ":0"]
        assert main([*arguments, "--admin", "off", "--log-level", "debug"]) == 0
        assert app.config is not None
        assert (str(app.config.listen), app.config.admin) == (":0", None)
        assert app.config.log.level == "debug"

    def test_runs_urls_without_a_file(self, app: FakeApp) -> None:
        assert main(["serve", "http://a:1", "http://b:2"]) == 0
        assert app.config is not None
        assert [backend.name for backend in app.config.backends] == ["a:1", "b:2"]

    def test_runs_backends_of_the_environment(
        self, app: FakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variables = {"WARMROUTE_BACKENDS__0__URL": "http://a"}
        monkeypatch.setattr("os.environ", variables)
        assert main(["serve"]) == 0
        assert app.config is not None
        assert app.config.backends[0].name == "a"

    def test_failure_is_1_with_a_line(self, app: FakeApp, capsys: Capture) -> None:
        app.error = BackendUnavailable("nobody there")
        assert main(["serve", "http://a"]) == 1
        assert capsys.readouterr().err == "warmroute: nobody there\n"


class TestCheckConfig:
    def test_good_file_is_0_with_a_line(
        self, config_file: Path, capsys: Capture
    ) -> None:
        assert main(["serve", "-c", str(config_file), "--check-config"]) == 0
        assert capsys.readouterr().out == (
            f"{config_file}: ok (2 backends, policy session)\n"
        )

    def test_bad_file_is_2_with_its_problems_on_stderr(
        self, config_file: Path, capsys: Capture
    ) -> None:
        config_file.write_text("backends: [{url: http://a, engine: vlm}]\nlisten: x\n")
        assert main(["serve", "-c", str(config_file), "--check-config"]) == 2
        printed = capsys.readouterr()
        lines = printed.err.splitlines()
        assert printed.out == ""
        assert [line.split(": ")[0] for line in lines] == [
            f"{config_file}:1",
            f"{config_file}:2",
        ]

    def test_missing_file_is_2(self, tmp_path: Path, capsys: Capture) -> None:
        assert main(["serve", "-c", str(tmp_path / "no.yaml")]) == 2
        assert "cannot be read: no such file" in capsys.readouterr().err

    def test_urls_can_be_checked(self, capsys: Capture) -> None:
        assert main(["serve", "http://a", "--check-config"]) == 0
        assert "ok (1 backend, policy expected_ttft)" in capsys.readouterr().out


def test_a_reader_that_left_ends_it_quietly() -> None:
    """As with ``| head -1``: no traceback, and the code of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "warmroute.proxy.cli", "schema"]
    with os.fdopen(writer, "wb") as sink:
        done = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [(["schema"], ""), (["schema"], "1"), (["--help"], ""), (["serve", "--help"], "")],
)
def test_output_that_finds_no_room_is_1_with_a_line(
    arguments: list[str], unbuffered: str
) -> None:
    """As with a full disk, whether the output was buffered or not."""
    command = [sys.executable, "-m", "warmroute.proxy.cli", *arguments]
    with Path("/dev/full").open("wb") as sink:
        done = subprocess.run(
            command,
            stdout=sink,
            stderr=subprocess.PIPE,
            env={"PYTHONUNBUFFERED": unbuffered},
        )
    told = b"warmroute: cannot write the output: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_another_error_of_the_system_keeps_its_traceback(app: FakeApp) -> None:
    """It is a fault of ours, and not of the output."""
    app.error = PermissionError("odd")
    with pytest.raises(PermissionError, match="odd"):
        main(["serve", "http://a"])


class TestUsage:
    def test_an_unknown_flag_shows_the_usage_of_its_command(
        self, capsys: Capture
    ) -> None:
        with pytest.raises(SystemExit):
            main(["serve", "http://a", "--frob"])
        told = capsys.readouterr().err
        assert told.startswith("usage: warmroute serve ")
        assert told.endswith("warmroute serve: error: unrecognized arguments: --frob\n")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["serve"],
            ["serve", "-c", "x.yaml", "http://a"],
            ["serve", "--frob"],
            ["frob"],
        ],
    )
    def test_bad_usage_is_2(self, arguments: list[str], capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert "usage: warmroute" in capsys.readouterr().err

    def test_no_command_is_2_with_the_help(self, capsys: Capture) -> None:
        assert main([]) == 2
        assert "usage: warmroute" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "command", [[], ["serve"], ["schema"], ["demo"], ["doctor"]]
    )
    def test_help_shows_an_example(self, command: list[str], capsys: Capture) -> None:
        with pytest.raises(SystemExit) as caught:
            build_parser().parse_args([*command, "--help"])
        assert caught.value.code == 0
        example = " ".join(["  warmroute", *(command or ["serve"])])
        assert example in capsys.readouterr().out.partition("examples:")[2]

    def test_broken_command_is_left_out_with_a_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """A distribution's command that does not import breaks no other one."""

        def get(registry: Registry[Command], name: str) -> type[Command]:
            if name == "demo":
                raise ConfigError("command 'demo': cannot import it")
            return found(registry, name)

        found = Registry[Command].get
        monkeypatch.setattr(Registry, "get", get)
        assert main(["schema"]) == 0
        assert (
            capsys.readouterr().err == "warmroute: command 'demo': cannot import it\n"
        )

    def test_version(self, capsys: Capture) -> None:
        with pytest.raises(SystemExit):
            main(["--version"])
        assert capsys.readouterr().out.startswith("warmroute 0.")

    def test_help_imports_nothing_heavy(self) -> None:
        code = (
            "import sys, warmroute.proxy.cli as cli; cli.build_parser(); "
            "print([m for m in ('aiohttp', 'pydantic', 'yaml') if m in sys.modules])"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert result.stdout == "[]\n"


class TestInterrupt:
    @pytest.mark.parametrize("module", ["argparse", "warmroute.proxy.cli"])
    def test_ctrl_c_while_it_loads_leaves_no_traceback(self, module: str) -> None:
        """The interrupt comes in the middle of an import."""
        code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from warmroute.proxy.entry import main
sys.exit(main())
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

    def test_ctrl_c_while_commands_are_found_leaves_no_traceback(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(registry: object) -> list[str]:
            raise KeyboardInterrupt

        monkeypatch.setattr(Registry, "names", interrupt)
        assert main(["schema"]) == 130


class TestDemo:
    @pytest.mark.parametrize(
        ("flags", "complaint"),
        [
            (["--conversations", "99"], "--conversations must be at most 32"),
            (["--users", "0"], "--users: '0' (allowed: a whole number from 1)"),
        ],
    )
    def test_bad_count_is_2(
        self, flags: list[str], complaint: str, capsys: Capture
    ) -> None:
        with pytest.raises(SystemExit) as caught:
            main(["demo", *flags])
        assert caught.value.code == 2
        assert complaint in capsys.readouterr().err


class TestSchema:
    def test_prints_json(self, capsys: Capture) -> None:
        assert main(["schema"]) == 0
        assert "$defs" in json.loads(capsys.readouterr().out)

    def test_prints_markdown(self, capsys: Capture) -> None:
        assert main(["schema", "--markdown"]) == 0
        assert capsys.readouterr().out.startswith("# Configuration\n")
