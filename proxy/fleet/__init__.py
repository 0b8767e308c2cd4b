"""The backends: their health, their restarts, and who may serve what."""

from warmroute.proxy.fleet.fleet import (
    Fleet,
)

__all__ = [
    "Fleet",
]
