"""The flags of vLLM that routing wants."""

import re
from collections.abc import Mapping

from warmroute.adapters.remedies import Lack

_EVENTS = (
    '\'{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",'
    '"replay_endpoint":"tcp://*:5558","topic":"kv-events"}\''
)
_CACHING_SINCE = (0, 8)

REMEDIES: Mapping[Lack, str] = {
    "api_key": "set the backend's api_key to what vLLM's --api-key or VLLM_API_KEY "
    "says",
    "max_model_len": "start all engines of the model with the same --max-model-len, or "
    "long prompts fail on some",
    "model_names": "correct the backend's models, or start vLLM with "
    "--served-model-name",
    "prefix_caching": "start vLLM without --no-enable-prefix-caching, or with "
    "--enable-prefix-caching for a model that has it off by default",
    "cached_tokens": "start vLLM with --enable-prompt-tokens-details",
    "kv_events": f"start vLLM with --kv-events-config {_EVENTS}; a release too old for "
    "/kv_event_sources: name the address in kv_events",
    "replay": f"start vLLM with a replay_endpoint: --kv-events-config {_EVENTS}",
    "block_size": "start all engines of the model with the same --block-size",
    "keep_alive": "start vLLM with VLLM_HTTP_TIMEOUT_KEEP_ALIVE=75 in its environment, "
    "or set timeouts.pool_idle_s below its keep-alive",
}

OPT_IN = "start vLLM with --enable-prefix-caching"


def caches_by_default(version: str | None) -> bool:
    """Tell whether a release caches prefixes unless told not to."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", version or "")
    return found is None or (int(found[1]), int(found[2])) >= _CACHING_SINCE
