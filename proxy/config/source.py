"""Where a configuration comes from: loading it, and comparing two.

Flags win over the environment, that over the file, that over the defaults.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config.backend import (
    BackendConfig,
)
from warmroute.proxy.config.checks import check_all
from warmroute.proxy.config.document import read_document
from warmroute.proxy.config.draft import Draft, Origin, dotted, shown
from warmroute.proxy.config.environment import (
    interpolate,
    override,
    put,
    refuse_references,
)
from warmroute.proxy.config.keys import Key
from warmroute.proxy.config.model import Config
from warmroute.proxy.config.validation import validate


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Say what a configuration is loaded from, now and at a reload.

    Args:
        path: The YAML file, if there is one.
        urls: Backend URLs instead of a file.
        flags: Values of command line flags by key path, such as ``log.level``.
    """

    path: Path | None = None
    urls: Sequence[str] = ()
    flags: Mapping[str, str] = field(default_factory=dict)

    def load(self, environ: Mapping[str, str]) -> Config:
        """Read, complete and validate the configuration.

        Raises:
            ConfigError: With every problem, one a line.
        """
        root = Key(Config)
        directory = self.path.parent if self.path else Path()
        draft = self._draft()
        override(draft, root, environ)
        for name, text in self.flags.items():
            flag = Origin(f"--{name.replace('.', '-')}")
            put(draft, root, tuple(name.split(".")), text, flag)
        interpolate(draft, root, environ)
        config = _finish(draft, directory)
        config._source = self
        return config

    def modified(self) -> tuple[int, int] | None:
        """Return a mark that differs once the file has changed; None without one."""
        try:
            status = self.path.stat() if self.path else None
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns) if status else None

    def _draft(self) -> Draft:
        if self.path is None:
            tree = {"backends": [*self.urls]} if self.urls else {}
            return Draft(Origin("command line"), tree, settled={("backends",)})
        draft = read_document(self.path)
        expected = "expected a mapping with `backends`, or a list of backend URLs"
        if draft.tree is None and not draft.problems:
            raise ConfigError(f"{self.path}: is empty; {expected}")
        if isinstance(draft.tree, list):
            draft.nest("backends")
        elif not isinstance(draft.tree, dict):
            draft.report((), f"{expected}, got {shown(draft.tree)}")
            raise draft.error()
        return draft


def _finish(draft: Draft, directory: Path) -> Config:
    check_all(draft, directory)
    config = validate(draft, Config, {"directory": directory})
    if config is None or draft.problems:
        raise draft.error()
    return config


def load_config(path: Path | str, environ: Mapping[str, str]) -> Config:
    """Load the configuration file at *path*.

    Raises:
        ConfigError: With every problem, one a line.
    """
    return ConfigSource(Path(path)).load(environ)


def backend_config(entry: Mapping[str, object]) -> BackendConfig:
    """Build one backend from a mapping with the keys that a file has.

    A ``${`` is refused: the variables here are not those of whoever asks.

    Raises:
        ConfigError: With every problem, one a line.
    """
    draft = Draft(Origin("request"), {"backends": [dict(entry)]})
    refuse_references(draft)
    return _finish(draft, Path()).backends[0]


def changed_listeners(old: Config, new: Config) -> list[str]:
    """Return the keys that differ and that only a restart can take up."""
    fixed = ("listen", "admin", "tls")
    return [key for key in fixed if getattr(old, key) != getattr(new, key)]


def differences(old: Config, new: Config) -> list[str]:
    """Describe what differs between two configurations, a line a key.

    Secrets are named and not shown.
    """
    before, after = dict(_values(old.model_dump())), dict(_values(new.model_dump()))
    lines = []
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            was, now = _shown(before.get(path)), _shown(after.get(path))
            lines.append(f"{path}: {was} -> {now}")
    return lines


def _shown(value: object) -> str:
    return "a secret" if isinstance(value, SecretStr) else shown(value)


def _values(
    value: object, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _values(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _values(child, (*path, index))
    else:
        yield dotted(path), value
