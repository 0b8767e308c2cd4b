"""Putting KV control into a scheduler, or saying why it cannot be."""

import hashlib
import importlib
import inspect
import logging
import os
import time
from typing import Any

from warmroute.adapters.kv_plugin.share import retained_share, retention_cap
from warmroute.adapters.kv_plugin.verbs import DeafControl
from warmroute.adapters.sglang.plugin.desk import Desk, TreeControl
from warmroute.adapters.sglang.plugin.names import (
    CORE_VARIABLE,
    NO_RESTORE,
    SOCKET_VARIABLE,
)
from warmroute.adapters.sglang.plugin.pins import Pins
from warmroute.adapters.sglang.plugin.publishing import Publishing
from warmroute.adapters.sglang.plugin.ranking import Ranking
from warmroute.adapters.sglang.plugin.tree import Tree
from warmroute.adapters.sglang.plugin.verbs import Verbs
from warmroute.adapters.sglang.plugin.versions import version_fault

logger = logging.getLogger("sglang.warmroute")

UNSUPPORTED = "unsupported: "
NO_HOST = (
    f"{UNSUPPORTED}there is no host tier; start SGLang with --enable-hierarchical-cache"
)
ALWAYS = {
    "restore": f"{UNSUPPORTED}{NO_RESTORE}",
    "budget": f"{UNSUPPORTED}the plugin evicts no blocks inside a running sequence",
}
_SALTED = b"sglang-cache-salt-v1\0"
_NEEDS_BOOKKEEPING = "tlru"
_SHAPES = {
    "_split_node": ("key", "child", "split_len"),
    "inc_full_pin": ("node_id",),
    "dec_full_pin": ("node_id",),
    "_evict_host_leaf": (
        "node",
        "tracker",
        "device_frees",
        "host_frees",
        "cache_actions",
    ),
}


def install(scheduler: Any) -> Desk:
    """Return the desk of a scheduler that is about to take its first turn.

    Never raises: what fails is logged, and then nobody is served.
    """
    try:
        path = os.environ.get(SOCKET_VARIABLE) if _is_first(scheduler) else None
        sleeper = getattr(scheduler, "idle_sleeper", None)
        desk = Desk(_made_or_deaf(scheduler), path, sleeper)
    except Exception as error:
        logger.exception("warmroute: KV control is off")
        desk = Desk(DeafControl(f"{UNSUPPORTED}{error!r}"), None, None)
    logger.info("warmroute: KV control is %r", desk)
    return desk


def engine_fault(scheduler: Any) -> str | None:
    """Say what about this engine the plugin cannot deal with, if anything."""
    fault = version_fault(importlib.import_module("sglang").__version__)
    if fault is not None:
        return fault
    if getattr(scheduler, "disable_radix_cache", False):
        return "prefix caching is off; start SGLang without --disable-radix-cache"
    world = _parallel()
    ranks = {name: getattr(world, name) for name in ("tp_size", "pp_size", "dp_size")}
    several = {name: size for name, size in ranks.items() if size != 1}
    if several:
        name, size = next(iter(several.items()))
        return f"{name} is {size} (allowed: 1): ranks must evict the same, or differ"
    return tree_fault(scheduler.tree_cache)


def tree_fault(cache: Any) -> str | None:
    """Say why a prefix cache cannot be driven; None if it can."""
    core: Any = getattr(cache, "tree_core", None)
    if type(core).__name__ != "UnifiedTreeCore":
        return (
            f"the radix tree is {type(core).__name__} (allowed: the one in Python); "
            f"start SGLang with {CORE_VARIABLE}=python"
        )
    if len(core.component_types) != 1 or core.is_eagle:
        return "the model caches more than full attention (allowed: that alone)"
    if getattr(cache, "is_write_back", False):
        return "--hicache-write-policy is write_back (allowed: write_through)"
    if not hasattr(core.components[0], "session_ref_eviction_strategy"):
        return "who orders victims is kept somewhere unknown"
    for name, wanted in _SHAPES.items():
        found = tuple(inspect.signature(getattr(core, name)).parameters)
        if found != wanted:
            return f"{name} takes {found} (known: {wanted})"
    return None


def _made_or_deaf(scheduler: Any) -> TreeControl | DeafControl:
    try:
        fault = engine_fault(scheduler)
        if fault is None:
            return _control(scheduler)
        return DeafControl(f"{UNSUPPORTED}{fault}")
    except Exception as error:
        logger.exception("warmroute: the plugin failed to start")
        return DeafControl(f"{UNSUPPORTED}the plugin failed to start: {error!r}")


def _control(scheduler: Any) -> TreeControl:
    cache = scheduler.tree_cache
    events = importlib.import_module("sglang.srt.disaggregation.kv_events")
    hashing = importlib.import_module("sglang.srt.mem_cache.utils")

    def namespaced(block_hash: int, seed: bytes) -> int:
        return int(events.namespaced_block_hash(block_hash, namespace_seed=seed))

    tree = Tree(cache, namespaced)
    num_pages = scheduler.max_total_num_tokens // tree.page_size
    # A request takes up one page more than its tokens fill.
    longest = scheduler.max_req_len + tree.page_size
    cap = retention_cap(num_pages, tree.page_size, longest, retained_share())
    pins = Pins(tree, cap, time.monotonic)
    publishing = _publishing(scheduler.kv_events_publisher)
    verbs = Verbs(
        tree,
        pins,
        _ranking(scheduler, hashing),
        publishing,
        lambda tokens, prior, size: list(hashing.get_hash_str(tokens, prior, size)),
        lambda salt: hashlib.sha256(_SALTED + salt.encode()).hexdigest(),
        ALWAYS | ({} if _has_host(scheduler) else {"offload": NO_HOST}),
    )
    return TreeControl(verbs, pins, publishing)


def _publishing(events: Any) -> Publishing:
    publisher = getattr(events, "kv_event_publisher", None)
    # A batch may be on its way through the publisher's thread: it was counted there.
    handed_over = 0
    if publisher is not None and hasattr(publisher, "_seq_gen"):
        handed_over = publisher._event_queue.qsize() + len(publisher._buffer)
    return Publishing(events.publish_kv_events, publisher, handed_over)


def _ranking(scheduler: Any, hashing: Any) -> Ranking:
    memory = importlib.import_module("sglang.srt.runtime_context").get_memory()
    name = str(memory.radix_eviction_policy).lower()
    options = getattr(memory, "radix_eviction_policy_config", None) or {}
    names = set(hashing._EVICTION_POLICY_FACTORIES) - {_NEEDS_BOOKKEEPING} | {name}
    core = scheduler.tree_cache.tree_core
    plain = dict(options) if isinstance(options, dict) else {}
    return Ranking(core, name, plain, names, hashing.get_eviction_strategy)


def _has_host(scheduler: Any) -> bool:
    return bool(getattr(scheduler, "enable_hierarchical_cache", False))


def _is_first(scheduler: Any) -> bool:
    world = _parallel()
    ranks = ("tp_rank", "pp_rank", "dp_rank")
    return all(not getattr(world, name, 0) for name in ranks)


def _parallel() -> Any:
    return importlib.import_module("sglang.srt.runtime_context").get_parallel()
