"""Names by which the operator and vLLM know the plugin."""

import os

PLUGIN = "warmroute"
PLUGINS_VARIABLE = "VLLM_PLUGINS"
TOKEN_VARIABLE = "WARMROUTE_KV_TOKEN"  # noqa: S105 - a name, no secret
SHARE_VARIABLE = "WARMROUTE_KV_RETAIN_SHARE"
ATTENTION_VARIABLE = "WARMROUTE_KV_ATTENTION"
CONTROL = "_warmroute_control"
"""Attribute of a scheduler under which its control is kept."""

UTILITY = "warmroute_kv"
"""Name of the method that the plugin adds to an ``EngineCore``."""

HOLES = "warmroute_holes"
"""Name of the method that the plugin adds to a worker."""

OPEN_HOLES = "_warmroute_holes"
"""Attribute of a model runner under which its holes are kept."""

SCORES = "warmroute_scores"
"""Name of the worker's method that begins to watch attention."""

MASSES = "warmroute_masses"
"""Name of the worker's method that tells what was seen."""

OPEN_WATCH = "_warmroute_watch"
"""Attribute of a model runner under which its watch is kept."""

WATCHED = "warmroute_watched"
"""Attribute of a step's output that tells the worker whom to watch."""

BUDGET = "_warmroute_budget"
"""Attribute of a request that has a budget."""

GIVEN_BACK = "warmroute_given_back"
"""Attribute of a step's output that tells the worker what was given back."""


def is_wanted() -> bool:
    """Return whether the operator named the plugin.

    vLLM itself loads every general plugin where its variable is not set; this one
    is loaded by name only.
    """
    names = os.environ.get(PLUGINS_VARIABLE, "").split(",")
    return PLUGIN in (name.strip() for name in names)
