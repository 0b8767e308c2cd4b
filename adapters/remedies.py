"""What an engine may lack for routing to work well, and what helps with any engine."""

from collections.abc import Mapping
from typing import Literal

Lack = Literal[
    "prefix_caching", "cached_tokens", "kv_events", "replay", "block_size", "keep_alive"
]
"""Something that a backend does not do, or does otherwise than the others."""

GENERAL: Mapping[Lack, str] = {
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
