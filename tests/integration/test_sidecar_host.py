"""The systemd unit and the Dockerfile of examples/02_sidecar hold together."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from warmroute.proxy.config import Config, load_config

FOLDER = Path(__file__).parents[2] / "examples" / "02_sidecar"
SPARE_S = 5


class Unit(configparser.RawConfigParser):
    """A systemd unit; keys may come several times."""

    def __init__(self, path: Path):
        super().__init__(strict=False, delimiters=("=",), interpolation=None)
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self._text = path.read_text()
        self.read_string(self._text)

    def all(self, key: str) -> list[str]:
        """Return every value of *key*, in order."""
        return re.findall(rf"^{key}=(.*)$", self._text, re.MULTILINE)


class TestSystemd:
    PATH = FOLDER / "warmroute.service"

    @pytest.fixture
    def unit(self) -> Unit:
        return Unit(self.PATH)

    @pytest.fixture
    def runnable(self, tmp_path: Path) -> Path:
        """Copy the unit with a program that exists here."""
        program = Path(sys.executable).with_name("warmroute")
        path = tmp_path / "warmroute.service"
        text = self.PATH.read_text().replace(
            "/opt/warmroute/bin/warmroute", str(program)
        )
        path.write_text(text)
        return path

    def test_stop_timeout_covers_the_drain(self, unit: Unit, config: Config) -> None:
        """The process is not killed while answers are still under way."""
        needed = config.drain.delay_s + config.drain.timeout_s + SPARE_S
        assert int(unit["Service"]["TimeoutStopSec"]) >= needed

    def test_stops_and_reloads_by_signal(self, unit: Unit) -> None:
        """SIGTERM drains, SIGHUP reloads, after the file was found good."""
        assert unit["Service"]["KillSignal"] == "SIGTERM"
        check, reload = unit.all("ExecReload")
        assert check.endswith("--check-config")
        assert reload == "/bin/kill -HUP $MAINPID"

    def test_bad_config_is_not_retried(self, unit: Unit) -> None:
        """Exit code 2 means a bad configuration: starting again is no help."""
        assert unit["Service"]["RestartPreventExitStatus"] == "2"
        assert unit["Service"]["Restart"] == "on-failure"

    def test_descriptors_suffice(self, unit: Unit, config: Config) -> None:
        """Each client connection may need one to an engine."""
        needed = 2 * config.limits.connections + 1024
        assert int(unit["Service"]["LimitNOFILE"]) >= needed

    def test_commands_are_ours(self, unit: Unit) -> None:
        """Start and check use the same program and the same file."""
        start = shlex.split(unit["Service"]["ExecStart"])
        check = shlex.split(unit["Service"]["ExecStartPre"])
        assert [*start, "--check-config"] == check
        assert start[1:3] == ["serve", "-c"]

    def test_hosts_only_serve_themselves(self, config: Config) -> None:
        """Both ports of the host's sidecar are on loopback."""
        assert config.admin is not None
        assert (config.listen.host, config.admin.host) == ("127.0.0.1", "127.0.0.1")

    @pytest.fixture
    def config(self) -> Config:
        return load_config(FOLDER / "config.yaml", {})

    def test_systemd_accepts_it(self, runnable: Path) -> None:
        """The unit has no unknown key and no value that systemd ignores."""
        self._analyze("verify", "--man=no", str(runnable))

    def test_exposure_is_low(self, runnable: Path) -> None:
        """systemd's own score, 0 best and 10 worst, is at most 2."""
        self._analyze("security", "--offline=yes", "--threshold=20", str(runnable))

    def _analyze(self, *arguments: str) -> None:
        program = shutil.which("systemd-analyze")
        if program is None:
            pytest.skip("systemd-analyze is not installed")
        done = subprocess.run(
            [program, "--no-pager", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""


class TestDockerfile:
    @pytest.fixture
    def steps(self) -> list[tuple[str, str]]:
        """Return (instruction, rest) with continued lines joined."""
        text = (FOLDER / "Dockerfile").read_text()
        text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
        lines = text.replace("\\\n", " ").splitlines()
        split = [line.split(None, 1) for line in lines if line.strip()]
        return [(name, " ".join(rest.split())) for name, rest in split]

    @pytest.fixture
    def final(self, steps: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the steps of the last stage."""
        start = max(i for i, (name, _) in enumerate(steps) if name == "FROM")
        return steps[start:]

    def test_builds_in_a_stage_of_its_own(self, steps: list[tuple[str, str]]) -> None:
        """What builds the wheel is not in the image that runs it."""
        bases = [rest for name, rest in steps if name == "FROM"]
        assert bases == ["python:3.11-slim AS build", "python:3.11-slim"]

    def test_compiler_is_there_before_the_wheel(
        self, steps: list[tuple[str, str]]
    ) -> None:
        """The wheel is built after a C compiler was installed: not pure Python."""
        runs = [rest for name, rest in steps if name == "RUN"]
        wheel = next(i for i, run in enumerate(runs) if "pip wheel" in run)
        assert any("install" in run and " gcc " in run for run in runs[:wheel])

    def test_final_stage_runs_nothing(self, final: list[tuple[str, str]]) -> None:
        """The image is its base and our environment: no packages, no compiler."""
        names = [name for name, _ in final]
        assert "RUN" not in names
        assert [rest for name, rest in final if name == "COPY"] == [
            "--from=build /opt/warmroute /opt/warmroute"
        ]

    def test_nothing_is_added_from_elsewhere(
        self, steps: list[tuple[str, str]]
    ) -> None:
        """ADD would fetch URLs and unpack archives."""
        assert "ADD" not in [name for name, _ in steps]

    def test_copies_what_the_build_needs(self, steps: list[tuple[str, str]]) -> None:
        """Every copied path exists in the repository."""
        root = FOLDER.parents[1]
        copied = [rest.split()[:-1] for name, rest in steps if name == "COPY"]
        sources = [path for paths in copied[:-1] for path in paths]
        needed = {"pyproject.toml", "setup.py", "proxy", "adapters", "policies"}
        assert needed <= set(sources)
        assert all((root / path).exists() for path in sources)

    def test_runs_as_nobody(self, final: list[tuple[str, str]]) -> None:
        """The user is a number, which runAsNonRoot can check, and not root."""
        user = dict(final)["USER"].split(":")[0]
        assert int(user) > 0

    def test_user_is_the_manifest_s(self, final: list[tuple[str, str]]) -> None:
        """Image and Kubernetes manifest name the same user."""
        text = (FOLDER / "kubernetes.yaml").read_text()
        user = dict(final)["USER"].split(":")[0]
        assert f"runAsUser: {user}" in text

    @pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD"])
    def test_starts_without_a_shell(
        self, name: str, final: list[tuple[str, str]]
    ) -> None:
        """In exec form signals reach the proxy, not a shell around it."""
        parts = yaml.safe_load(dict(final)[name])
        assert isinstance(parts, list)
        assert all(isinstance(part, str) for part in parts)

    def test_stop_signal_drains(self, final: list[tuple[str, str]]) -> None:
        """`docker stop` asks for a drain."""
        assert dict(final)["STOPSIGNAL"] == "SIGTERM"


def test_check_config_accepts_the_host_s_file() -> None:
    """The command that the unit runs first finds the file good."""
    program = Path(sys.executable).with_name("warmroute")
    done = subprocess.run(
        [program, "serve", "-c", FOLDER / "config.yaml", "--check-config"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
