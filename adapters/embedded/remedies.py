"""The flags of the embedded engine that routing wants."""

from collections.abc import Mapping

from warmroute.adapters.remedies import Lack

REMEDIES: Mapping[Lack, str] = {
    "max_model_len": "start all engines of the model with the same --max-model-len, or "
    "long prompts fail on some",
    "model_names": "correct the backend's models, or start `warmroute engine` with "
    "--served-model-name",
    "prefix_caching": "give the engine more --num-blocks: it always caches, so the "
    "prompt was evicted at once",
    "cached_tokens": "bring the engine up to the release of the proxy: it always "
    "reports cached tokens",
    "kv_events": "start `warmroute engine` with --kv-events 'tcp://*:5557' "
    "--kv-events-replay 'tcp://*:5558', each engine with ports of its own",
    "replay": "start `warmroute engine` with --kv-events-replay 'tcp://*:5558', each "
    "engine with a port of its own",
    "block_size": "start all engines of the model with the same --block-size",
}
