"""What an engine may lack for routing to work well, and what helps with any engine."""

from collections.abc import Mapping
from typing import Literal

Lack = Literal[
    "api_key",
    "block_size",
    "cached_tokens",
    "keep_alive",
    "kv_events",
    "max_model_len",
    "model_names",
    "prefix_caching",
    "replay",
]
"""Something that a backend does not do, or does otherwise than the others."""

GENERAL: Mapping[Lack, str] = {
    "api_key": "set the backend's api_key to the one that the engine wants",
    "max_model_len": "start all engines of the model with the same longest sequence, "
    "or long prompts fail on some",
    "model_names": "correct the backend's models, or the engine's name for its model",
    "prefix_caching": "turn on the engine's prefix cache; without one every backend is "
    "as cold as the next",
    "cached_tokens": "have the engine report "
    "usage.prompt_tokens_details.cached_tokens, if it can",
    "kv_events": "set kv_events: off for this backend; its view is then the mirror of "
    "what was sent",
    "replay": "name a replay address of the engine in kv_events, if it has one",
    "block_size": "start all engines of the model with the same block size",
    "keep_alive": "raise the engine's keep-alive timeout, or set timeouts.pool_idle_s "
    "below it",
}
"""For engines of which nothing more is known."""
