"""The frame of an entry point: load by name only, and never harm the engine."""

import logging
import os
from collections.abc import Callable

from warmroute.adapters.kv_plugin.names import PLUGIN


def is_wanted(variable: str) -> bool:
    """Return whether the operator named the plugin in an engine's *variable*.

    Engines themselves load every plugin where the variable is not set; this one is
    loaded by name only.
    """
    names = os.environ.get(variable, "").split(",")
    return PLUGIN in (name.strip() for name in names)


def register_if_wanted(
    variable: str, register: Callable[[], None], logger: logging.Logger
) -> None:
    """Register where that is asked for by name; what fails is logged, never raised."""
    if not is_wanted(variable):
        return
    try:
        register()
    except Exception:
        logger.exception("warmroute: the plugin is off")
