"""Which engines can have no budgets inside their sequences, and why."""

from typing import Any


def budgets_fault(scheduler: Any) -> str | None:
    """Say why no sequence of this engine can have a budget, if so."""
    config, manager = scheduler.vllm_config, _manager(scheduler)
    spec = manager.kv_cache_spec
    parallel = config.parallel_config
    if scheduler.connector is not None:
        return "unsupported: a KV connector copies blocks of running sequences"
    if config.speculative_config is not None:
        return "unsupported: speculative decoding writes ahead of what is sure"
    if config.scheduler_config.async_scheduling:
        return "unsupported: steps are scheduled ahead; use --no-async-scheduling"
    if parallel.world_size > 1 or parallel.decode_context_parallel_size > 1:
        return f"unsupported: {parallel.world_size} workers (allowed: 1)"
    if type(manager).__name__ != "FullAttentionManager":
        return f"unsupported: the cache is kept by a {type(manager).__name__}"
    if type(spec).__name__ != "FullAttentionSpec":
        return f"unsupported: the cache is a {type(spec).__name__}"
    if spec.sliding_window is not None or spec.attention_chunk_size is not None:
        return "unsupported: the model has a window of its own"
    return None


def _manager(scheduler: Any) -> Any:
    return scheduler.kv_cache_manager.coordinator.single_type_managers[0]
