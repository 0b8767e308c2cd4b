"""Serve Phoenix with its gRPC port on loopback too; run by Phoenix's own Python.

Phoenix binds that port on all interfaces, whatever PHOENIX_HOST says.
"""

import sys
from typing import Any

from grpc.aio import _server
from phoenix.server.main import main

_add_port = _server.Server.add_insecure_port


def _add_on_loopback(self: Any, address: str) -> Any:
    return _add_port(self, address.replace("[::]", "127.0.0.1"))


_server.Server.add_insecure_port = _add_on_loopback
sys.argv = ["phoenix", "serve"]
main()
