"""The self-test: are the insides of this vLLM what the plugin takes them for?

It looks at signatures, and then does to a pool of eight pages of its own what the
verbs do to the engine's. It needs no engine.
"""

import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from warmroute.adapters.kv_control import VERBS
from warmroute.adapters.vllm.plugin.budgets import Budgets
from warmroute.adapters.vllm.plugin.host import tier_of
from warmroute.adapters.vllm.plugin.limits import Limit
from warmroute.adapters.vllm.plugin.names import BUDGET
from warmroute.adapters.vllm.plugin.notes import Notes
from warmroute.adapters.vllm.plugin.versions import version_fault
from warmroute.adapters.vllm.plugin.walks import Walks

_CORE = ("vllm.v1.engine.core", "EngineCoreProc")
_SIGNATURES: dict[tuple[str, str, str], tuple[str, ...]] = {
    ("vllm.v1.core.block_pool", "BlockPool", "cache_full_blocks"): (
        "request",
        "blocks",
        "num_cached_blocks",
        "num_full_blocks",
        "block_size",
        "kv_cache_group_id",
        "block_mask",
    ),
    ("vllm.v1.core.block_pool", "BlockPool", "touch"): ("blocks",),
    ("vllm.v1.core.block_pool", "BlockPool", "free_blocks"): ("ordered_blocks",),
    ("vllm.v1.core.block_pool", "BlockPool", "evict_blocks"): ("block_ids",),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", "take_events"): (),
    ("vllm.distributed.kv_events", "EventPublisher", "publish"): ("events",),
    (*_CORE, "_handle_client_request"): ("request_type", "request"),
}
_HASH = b"warmroute self-test of a block.." + bytes(4)


def examine() -> dict[str, str]:
    """Return the verbs that cannot work on this vLLM, each with the reason."""
    fault = version_fault(importlib.import_module("vllm").__version__)
    if fault is None:
        fault = _first_fault(_check_signatures, "the insides of vLLM")
    if fault is not None:
        return dict.fromkeys(VERBS, fault)
    faults: dict[str, str] = {}
    for verbs, rehearse in _REHEARSALS:
        fault = _first_fault(rehearse, "a rehearsal")
        if fault is not None:
            faults |= dict.fromkeys(verbs, fault)
    return faults


def _first_fault(check: Callable[[], None], what: str) -> str | None:
    try:
        check()
    except Exception as error:
        return f"unsupported: {what} failed: {type(error).__name__}: {error}"
    return None


def _check_signatures() -> None:
    for (module, kind, name), expected in _SIGNATURES.items():
        function = getattr(getattr(importlib.import_module(module), kind), name)
        found = tuple(inspect.signature(function).parameters)[1:]
        if found != expected:
            raise TypeError(f"{kind}.{name} takes {found}, not {expected}")


def _pool() -> Any:
    kind = importlib.import_module("vllm.v1.core.block_pool").BlockPool
    return kind(8, True, 16, enable_kv_cache_events=True)


def _cached_page(pool: Any) -> Any:
    page = pool.get_new_blocks(1)[0]
    pool._insert_block_hash(_HASH, page, num_tokens=16)
    entry = pool.cached_block_hash_to_block._cache.get(_HASH)
    _expect(entry is page, "a cached page is not in the map")
    pool.free_blocks([page])
    return page


def _rehearse_snapshot() -> None:
    pool, notes = _pool(), Notes()
    page, other = _cached_page(pool), bytes(36)
    for block_hash in (_HASH, other):
        notes.add(block_hash, None, 0, (), None)
    cache = pool.cached_block_hash_to_block
    with Walks(pool, notes).begun(None) as walk:
        pool.evict_blocks({page.block_id})
        pool._insert_block_hash(other, page, num_tokens=16)
    found = [one for some in (*walk.go(), *walk.taken_down()) for one in some]
    told = {one.block_hash: one.refs for one in found}
    _expect(told == {_HASH: 0, other: None}, "a change is not told in time")
    _expect(list(vars(cache)) == ["_cache"], "the map is not left as it was")
    pool.reset_prefix_cache()
    left = pool.cached_block_hash_to_block is not cache and len(cache._cache) == 1
    _expect(left, "a reset changes the map that it drops")


def _rehearse_evict() -> None:
    pool = _pool()
    page = _cached_page(pool)
    pool.free_block_queue.remove(page)
    pool.evict_blocks({page.block_id})
    pool.free_block_queue.prepend_n([page])
    _expect(page.block_hash is None, "an evicted page keeps its hash")
    _expect(len(pool.take_events()) == 1, "an eviction is not told")
    _expect(pool.get_new_blocks(1) == [page], "an evicted page is not used next")


def _rehearse_retain() -> None:
    pool = _pool()
    page = _cached_page(pool)
    pool.touch([page])
    others = pool.get_new_blocks(pool.get_num_free_blocks())
    _expect(page not in others and page.ref_cnt == 1, "a held page is given out")
    pool.free_blocks([page])
    _expect(pool.get_new_blocks(1) == [page], "a page let go is not free")


def _rehearse_demote() -> None:
    pool = _pool()
    page = _cached_page(pool)
    _expect(pool.free_block_queue.get_all_free_blocks()[-1] is page, "order differs")
    pool.free_block_queue.remove(page)
    pool.free_block_queue.prepend_n([page])
    _expect(pool.get_new_blocks(1) == [page], "a demoted page is not used next")


def _rehearse_policy() -> None:
    pool = _pool()
    queue = pool.free_block_queue
    first = queue.popleft()
    queue.append_n([first])
    _expect(queue.get_all_free_blocks()[-1] is first, "pages are not put at the end")
    _expect(len(queue.popleft_n(7)) == 7, "pages are missing")
    _expect(queue.num_free_blocks == 0, "pages are miscounted")


def _rehearse_host() -> None:
    base = importlib.import_module("vllm.v1.kv_offload.base")
    module = importlib.import_module("vllm.v1.kv_offload.cpu.manager")
    manager = module.CPUOffloadingManager(num_chunks=1, enable_events=True)
    request = base.ReqContext(req_id="warmroute self-test")
    tier = tier_of(manager)
    stored = manager.prepare_store([_HASH], request)
    _expect(stored.keys_to_store == [_HASH], "a chunk is not stored")
    _expect(not tier.has(_HASH), "a chunk is there before it is copied")
    told: list[tuple[bytes, bool | None]] = []
    tier.tell(lambda one, is_on_host=None: told.append((one, is_on_host)))
    manager.complete_store([_HASH], request)
    _expect(tier.has(_HASH), "a chunk is not there after it was copied")
    list(manager.take_events())
    _expect(tier.drop(_HASH) and not tier.has(_HASH), "a chunk cannot be dropped")
    (event,) = manager.take_events()
    _expect(event.removed and event.keys == [_HASH], "a dropped chunk is not told")
    again = manager.prepare_store([bytes(36)], request)
    _expect(again is not None and not again.evicted_keys, "a chunk is lost")
    manager.complete_store([bytes(36)], request)
    manager.prepare_store([_HASH], request)
    tier.tell(None)
    comes_and_goes = [
        (_HASH, None),
        (_HASH, None),
        (bytes(36), None),
        (bytes(36), True),
    ]
    _expect(told == comes_and_goes, "a chunk that comes or goes is not told")


def _rehearse_budget() -> None:
    module = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
    pool = _pool()
    pages = pool.get_new_blocks(5)
    pool._insert_block_hash(_HASH, pages[1], num_tokens=16)
    pool.touch([pages[1]])
    manager = SimpleNamespace(
        block_size=16,
        block_pool=pool,
        req_to_blocks={"r": list(pages)},
        num_cached_block={},
    )
    _give_some(manager)
    manager.kv_cache_spec = SimpleNamespace(prefix_cacheable=True)
    caches = module.SingleTypeKVCacheManager.cache_blocks
    caches(manager, _REQUEST, 80, replay_boundaries=())
    _expect(pages[4].block_hash is None, "what saw a part only is cached")
    _expect(pages[1].ref_cnt == 1, "a block of others is lost")
    _expect(pool.get_num_free_blocks() == 3, "a block is not given back")
    manager.req_to_blocks["r"][1:3] = pool.get_new_blocks(2)
    _expect(pool.get_num_free_blocks() == 1, "blocks do not return")
    pool.free_blocks(reversed(manager.req_to_blocks["r"]))
    pool.free_blocks([pages[1]])
    _expect(pool.get_num_free_blocks() == 7, "a block is lost")


_REQUEST = SimpleNamespace(
    request_id="r",
    num_computed_tokens=78,
    num_prompt_tokens=50,
    num_tokens_with_spec=79,
)


def _give_some(manager: Any) -> None:
    coordinator = SimpleNamespace(single_type_managers=[manager])
    scheduler = SimpleNamespace(
        kv_cache_manager=SimpleNamespace(coordinator=coordinator), running=[_REQUEST]
    )
    setattr(_REQUEST, BUDGET, Limit(1, 3))
    given = Budgets(scheduler).give_back()
    _expect(given == {"r": [1, 2]}, f"{given} is given back")


def _expect(is_so: bool, fault: str) -> None:
    if not is_so:
        raise AssertionError(fault)


_REHEARSALS: tuple[tuple[tuple[str, ...], Callable[[], None]], ...] = (
    (("snapshot",), _rehearse_snapshot),
    (("evict", "flush"), _rehearse_evict),
    (("retain", "release"), _rehearse_retain),
    (("demote",), _rehearse_demote),
    (("policy",), _rehearse_policy),
    (("budget",), _rehearse_budget),
    (("offload", "restore"), _rehearse_host),
)
