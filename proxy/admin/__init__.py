"""The admin server: metrics, state, decisions, and the levers."""

from warmroute.proxy.admin.server import (
    make_admin,
)

__all__ = [
    "make_admin",
]
