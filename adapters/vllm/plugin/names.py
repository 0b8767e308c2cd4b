"""Names by which the operator and vLLM know the plugin."""

PLUGINS_VARIABLE = "VLLM_PLUGINS"
ATTENTION_VARIABLE = "WARMROUTE_KV_ATTENTION"
CONTROL = "_warmroute_control"
"""Attribute of a scheduler under which its control is kept."""

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

COPIES = "warmroute_copies"
"""Name of the worker's method that begins to copy what is given back."""

PUT_BACK = "warmroute_put_back"
"""Name of the worker's method that puts copies on pages again."""

OPEN_COPIES = "_warmroute_copies"
"""Attribute of a model runner under which its copies are kept."""

COPIED = "warmroute_copied"
"""Attribute of a step's output that tells the worker what to copy."""

DROPPED = "warmroute_dropped"
"""Attribute of a step's output that tells the worker whose copies to drop."""
