"""The flags of SGLang that routing wants."""

from collections.abc import Mapping

from warmroute.adapters.remedies import Lack

_EVENTS = (
    '\'{"publisher":"zmq","endpoint":"tcp://*:5557",'
    '"replay_endpoint":"tcp://*:5558","topic":"kv-events"}\''
)

REMEDIES: Mapping[Lack, str] = {
    "api_key": "set the backend's api_key to what SGLang's --api-key says",
    "max_model_len": "start all engines of the model with the same --context-length, "
    "or long prompts fail on some",
    "model_names": "correct the backend's models, or start SGLang with "
    "--served-model-name",
    "prefix_caching": "start SGLang without --disable-radix-cache",
    "cached_tokens": "start SGLang with --enable-cache-report",
    "kv_events": f"start SGLang with --kv-events-config {_EVENTS}",
    "replay": f"start SGLang with a replay_endpoint: --kv-events-config {_EVENTS}",
    "block_size": "start all engines of the model with the same --page-size",
    "keep_alive": "start SGLang with SGLANG_TIMEOUT_KEEP_ALIVE=75 in its environment, "
    "or set timeouts.pool_idle_s below its keep-alive",
}
