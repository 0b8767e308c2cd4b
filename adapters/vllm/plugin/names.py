"""Names by which the operator and vLLM know the plugin."""

PLUGINS_VARIABLE = "VLLM_PLUGINS"
CONTROL = "_warmroute_control"
"""Attribute of a scheduler under which its control is kept."""

HOLES = "warmroute_holes"
"""Name of the method that the plugin adds to a worker."""

OPEN_HOLES = "_warmroute_holes"
"""Attribute of a model runner under which its holes are kept."""

BUDGET = "_warmroute_budget"
"""Attribute of a request that has a budget."""

GIVEN_BACK = "warmroute_given_back"
"""Attribute of a step's output that tells the worker what was given back."""
