"""Names by which the operator and SGLang know the plugin."""

PLUGINS_VARIABLE = "SGLANG_PLUGINS"
SOCKET_VARIABLE = "_WARMROUTE_SGLANG_SOCKET"
"""Where the scheduler listens; set by the server for the processes it starts."""

CORE_VARIABLE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
NO_RESTORE = "SGLang loads from the host when a request needs it"
"""Why nothing is restored by itself."""

CONTROL = "_warmroute_desk"
"""Attribute of a scheduler under which its desk is kept."""
