"""Names by which the operator and SGLang know the plugin."""

import os

PLUGIN = "warmroute"
PLUGINS_VARIABLE = "SGLANG_PLUGINS"
SHARE_VARIABLE = "WARMROUTE_KV_RETAIN_SHARE"
SOCKET_VARIABLE = "_WARMROUTE_SGLANG_SOCKET"
"""Where the scheduler listens; set by the server for the processes it starts."""

CORE_VARIABLE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
CONTROL = "_warmroute_desk"
"""Attribute of a scheduler under which its desk is kept."""


def is_wanted() -> bool:
    """Return whether the operator named the plugin.

    SGLang itself loads every plugin where its variable is not set; this one is loaded
    by name only.
    """
    names = os.environ.get(PLUGINS_VARIABLE, "").split(",")
    return PLUGIN in (name.strip() for name in names)
