"""The arguments that name a running proxy."""

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmroute.proxy.console.admin_client import AdminClient


def add_admin_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where to ask, and in which form to answer."""
    parser.add_argument(
        "--admin",
        default="http://127.0.0.1:9090",
        metavar="URL",
        help="admin port of the proxy (http://127.0.0.1:9090); "
        "its token comes from WARMROUTE_ADMIN_TOKEN",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, not text")


def admin_client(options: argparse.Namespace) -> "AdminClient":
    """Return what asks the proxy that the arguments name.

    Raises:
        ConfigError: They name none.
    """
    from warmroute.proxy.console.admin_client import AdminClient

    return AdminClient(options.admin, os.environ)
