"""The arguments that name backends: a file, or URLs."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmroute.proxy.config import ConfigSource


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the file and the URLs."""
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="backends, instead of a file")
    add("-c", "--config", type=Path, metavar="FILE", help="configuration file (YAML)")


def config_source(
    options: argparse.Namespace, flags: Mapping[str, str]
) -> "ConfigSource":
    """Return where the configuration comes from; ends the process on bad usage.

    Args:
        options: What was given.
        flags: Values of other flags by key path, such as ``log.level``.
    """
    from warmroute.proxy.config import ConfigSource

    if options.config and options.urls:
        options.parser.error("give a file or URLs, not both")
    if not (options.config or options.urls or _has_backends(os.environ)):
        options.parser.error("give a file with -c, or the URLs of backends")
    return ConfigSource(options.config, options.urls, flags)


def _has_backends(environ: Mapping[str, str]) -> bool:
    return any(name.startswith("WARMROUTE_BACKENDS") for name in environ)
