"""Names by which operators know the plugins of all engines."""

PLUGIN = "warmroute"
"""What is named in an engine's own list of plugins."""

TOKEN_VARIABLE = "WARMROUTE_KV_TOKEN"  # noqa: S105 - a name, no secret
SHARE_VARIABLE = "WARMROUTE_KV_RETAIN_SHARE"
UTILITY = "warmroute_kv"
"""Name of the method by which an engine is called."""
