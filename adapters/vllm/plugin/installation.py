"""Putting KV control into a scheduler, or saying why it cannot be."""

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from warmroute.adapters.kv_control import VERBS
from warmroute.adapters.kv_plugin.share import retained_share, retention_cap
from warmroute.adapters.kv_plugin.verbs import DeafControl
from warmroute.adapters.vllm.plugin.budget_faults import budgets_fault
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.contents import Contents
from warmroute.adapters.vllm.plugin.core import CoreControl
from warmroute.adapters.vllm.plugin.events import Announcer, CountedPublisher
from warmroute.adapters.vllm.plugin.holds import PoolHolds
from warmroute.adapters.vllm.plugin.host import host_tier
from warmroute.adapters.vllm.plugin.naming import BlockNaming, HashBlock
from warmroute.adapters.vllm.plugin.ordering import Ordering
from warmroute.adapters.vllm.plugin.ports import Batch, Block, Request, Scheduler
from warmroute.adapters.vllm.plugin.restoring import Restoring
from warmroute.adapters.vllm.plugin.returning import Returning
from warmroute.adapters.vllm.plugin.verbs import Verbs
from warmroute.policies.eviction.registry import evictions
from warmroute.policies.kv.retention import Retention

logger = logging.getLogger(__name__)

_EXPIRED_AT_ONCE = 16


def install(scheduler: Scheduler, faults: dict[str, str]) -> CoreControl | DeafControl:
    """Return the control of an engine, with its pool and its publisher watched.

    Args:
        scheduler: The engine's, just made.
        faults: Verbs that the self-test found not to work, with the reason.
    """
    fault = engine_fault(scheduler)
    if fault is not None:
        return DeafControl(f"unsupported: {fault}")
    if len(faults) == len(VERBS):
        return DeafControl(next(iter(faults.values())))
    return _watch(scheduler, faults)


def engine_fault(scheduler: Scheduler) -> str | None:
    """Say what about this engine the plugin cannot deal with, if anything."""
    config, manager = cast(Any, scheduler).vllm_config, scheduler.kv_cache_manager
    groups = len(cast(Any, manager).kv_cache_config.kv_cache_groups)
    parallel = config.parallel_config
    if not manager.block_pool.enable_caching:
        return "prefix caching is off; start vLLM with --enable-prefix-caching"
    if groups != 1:
        return f"the model has {groups} KV cache groups (allowed: 1)"
    if manager.block_pool.hash_block_size != _block_size(scheduler):
        return "blocks and hashes differ in size"
    if parallel.data_parallel_size > 1:
        return (
            f"{parallel.data_parallel_size} data-parallel engines share one server "
            f"(allowed: 1); give each rank a server of its own"
        )
    return None


def _watch(scheduler: Scheduler, faults: dict[str, str]) -> CoreControl:
    pool = scheduler.kv_cache_manager.block_pool
    contents = Contents(pool, _block_size(scheduler), _extra_keys())
    pool.cache_full_blocks = watched(pool.cache_full_blocks, contents)
    announcer = _announcer(scheduler)
    retention = _retention(scheduler, contents)
    load_policies()
    naming = BlockNaming(contents.block_size, _hash_block(scheduler))
    host = faults.get("offload") or host_tier(scheduler)
    if isinstance(host, str):
        faults = {"offload": host, "restore": host} | faults
        tier = restoring = None
    else:
        tier = contents.host = host
        restoring = Restoring(contents, host, naming, _longest(scheduler))
    fault = faults.get("budget") or budgets_fault(scheduler)
    if fault is not None:
        faults = faults | {"budget": fault}
    budgets = Budgets(scheduler) if fault is None else None
    verbs = Verbs(
        pool,
        contents,
        announcer,
        retention,
        Ordering(pool, contents),
        naming,
        faults,
        tier,
        restoring,
        budgets,
        None if budgets is None else Returning(scheduler, budgets),
    )
    return CoreControl(verbs, retention, announcer, budgets)


def _announcer(scheduler: Scheduler) -> Announcer:
    publisher = CountedPublisher(scheduler.kv_event_publisher)
    scheduler.kv_event_publisher = publisher
    return Announcer(_event_sources(scheduler), publisher, _batch())


def _retention(scheduler: Scheduler, contents: Contents) -> Retention:
    pool = scheduler.kv_cache_manager.block_pool
    num_pages = pool.num_gpu_blocks - 1  # one is never given out
    longest, size = _longest(scheduler), contents.block_size
    cap = retention_cap(num_pages, size, longest, retained_share())
    return Retention(
        PoolHolds(pool, contents),
        min(1.0, (cap + 0.5) / num_pages) if cap else 0.0,
        clock=time.monotonic,
        at_most=_EXPIRED_AT_ONCE,
    )


def watched(cache: Callable[..., None], contents: Contents) -> Callable[..., None]:
    """Return a pool's ``cache_full_blocks`` that has *contents* take note."""

    def cache_full_blocks(
        request: Request,
        blocks: Sequence[Block],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        cache(
            request,
            blocks,
            num_cached_blocks,
            num_full_blocks,
            block_size,
            kv_cache_group_id,
            block_mask,
        )
        if num_cached_blocks < num_full_blocks:
            try:
                contents.note(request, blocks, num_cached_blocks, num_full_blocks)
            except Exception:
                logger.exception("warmroute: blocks could not be noted")

    return cache_full_blocks


def load_policies() -> None:
    """Import every eviction policy now: the disk has no place between two steps."""
    for name in evictions.names():
        try:
            evictions.get(name)
        except Exception:
            logger.exception("warmroute: eviction policy %s does not load", name)


def _event_sources(scheduler: Scheduler) -> list[Callable[[], Iterable[object]]]:
    sources: list[Callable[[], Iterable[object]]] = [
        scheduler.kv_cache_manager.take_events
    ]
    if scheduler.connector is not None:
        sources.append(cast(Any, scheduler.connector).take_events)
    return sources


def _block_size(scheduler: Scheduler) -> int:
    manager = cast(Any, scheduler.kv_cache_manager)
    return int(manager.coordinator.single_type_managers[0].block_size)


def _longest(scheduler: Scheduler) -> int:
    return int(cast(Any, scheduler).vllm_config.model_config.max_model_len)


def _hash_block(scheduler: Scheduler) -> HashBlock:
    algorithm = cast(Any, scheduler).vllm_config.cache_config.prefix_caching_hash_algo
    hash_one = importlib.import_module("vllm.utils.hashing").get_hash_fn_by_name(
        algorithm
    )
    hash_block_tokens = _kv_cache_utils().hash_block_tokens

    def hash_block(parent: bytes | None, tokens: Sequence[int], extra: object) -> bytes:
        return bytes(hash_block_tokens(hash_one, parent, tokens, extra))

    return hash_block


def _extra_keys() -> Callable[[Request, int, int], list[object] | None]:
    module = _kv_cache_utils()

    def extra_keys(request: Request, start: int, end: int) -> list[object] | None:
        if not (
            request.lora_request
            or request.mm_features
            or (request.cache_salt and start == 0)
            or request.prompt_embeds is not None
        ):
            return None
        keys, _ = module.generate_block_hash_extra_keys(request, start, end, 0)
        untagged = module.to_event_extra_keys([keys])
        return None if not untagged or not untagged[0] else _plain(untagged[0])

    return extra_keys


def _plain(keys: Sequence[object]) -> list[object]:
    """Return keys as JSON can say them; digests as hexadecimal digits."""
    return [
        list(key)
        if isinstance(key, tuple)
        else key.hex()
        if isinstance(key, bytes)
        else key
        for key in keys
    ]


def _batch() -> Callable[[list[object]], Batch]:
    kind = importlib.import_module("vllm.distributed.kv_events").KVEventBatch
    return lambda events: cast(Batch, kind(ts=time.time(), events=events))


def _kv_cache_utils() -> Any:
    return importlib.import_module("vllm.v1.core.kv_cache_utils")
