"""Writes configuration files for tests, and loads them."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from warmroute.policies.errors import ConfigError
from warmroute.proxy.config import Config, load_config

MINIMAL = "backends: [http://127.0.0.1:8101]\n"


class Files:
    """One configuration file in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "config.yaml"

    def load(
        self, text: str | bytes, environ: Mapping[str, str] | None = None
    ) -> Config:
        data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        self.path.write_bytes(data)
        return load_config(self.path, environ or {})

    def problems(
        self, text: str | bytes, environ: Mapping[str, str] | None = None
    ) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            self.load(text, environ)
        prefix = f"{self.path.parent}/"
        return str(caught.value).replace(prefix, "").split("\n")
