"""The arguments that name a running proxy."""

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmroute.proxy.console.admin_client import AdminClient


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where to ask, and in which form to answer."""
    add_admin_address(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, not text")


def add_admin_address(parser: argparse.ArgumentParser) -> None:
    """Declare where to ask."""
    parser.add_argument(
        "--admin",
        metavar="URL",
        help="admin port of the proxy, as host:port or URL (WARMROUTE_ADMIN, else "
        "http://127.0.0.1:9090); its token comes from WARMROUTE_ADMIN_TOKEN",
    )


def admin_client(options: argparse.Namespace, **bounds: int) -> "AdminClient":
    """Return what asks the proxy that the arguments name, within other bounds.

    Raises:
        ConfigError: They name none.
    """
    from warmroute.proxy.console.admin_client import AdminClient

    return AdminClient(options.admin, os.environ, **bounds)
