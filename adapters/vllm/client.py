"""vLLM over HTTP: what it tells about itself without any plugin."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace

from warmroute.adapters.base import (
    CacheCounters,
    Endpoint,
    EngineFacts,
    EventAddress,
    KVControl,
    Lack,
    ModelCard,
    Snapshot,
)
from warmroute.adapters.exposition import Exposition, Samples
from warmroute.adapters.kv_client import read_snapshot
from warmroute.adapters.kv_events.address import host_of
from warmroute.adapters.kv_stock import StockFlush, StockKVControl
from warmroute.adapters.openai import OpenAIAdapter, owners
from warmroute.adapters.tokenize import ask_tokens
from warmroute.adapters.vllm.event_sources import PATH, read_sources
from warmroute.adapters.vllm.remedies import OPT_IN, REMEDIES, caches_by_default
from warmroute.policies.errors import ProtocolMismatch

CONFIG = "vllm:cache_config_info"
USAGE = "vllm:kv_cache_usage_perc"
OLD_USAGE = "vllm:gpu_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
START_TIME = "process_start_time_seconds"
QUERIED = "vllm:prefix_cache_queries_total"
HIT = "vllm:prefix_cache_hits_total"
HIT_OUTSIDE = "vllm:external_prefix_cache_hits_total"
RANK = "engine"

FLUSH = StockFlush(
    "/reset_prefix_cache",
    "vLLM offers it in developer mode; start it with VLLM_SERVER_DEV_MODE=1, or "
    "with the warmroute plugin",
)
NEED = (
    "stock vLLM has no such lever; install warmroute beside it, name the plugin in "
    "VLLM_PLUGINS and give the engine its token"
)

_EXPOSITION = Exposition((CONFIG, USAGE, OLD_USAGE, RUNNING, WAITING, START_TIME))
_SWITCH: Mapping[str | None, bool] = {"True": True, "False": False}
_COUNTERS = Exposition((QUERIED, HIT, HIT_OUTSIDE))


class VLLMAdapter(OpenAIAdapter):
    """Read vLLM by ``/health``, ``/v1/models``, ``/version`` and ``/metrics``."""

    name = "vllm"
    remedies = REMEDIES

    async def facts(
        self, endpoint: Endpoint, known: EngineFacts | None = None
    ) -> EngineFacts:
        """Read ``/metrics``, and ``/version`` the first time."""
        version = known.version if known else await self._version(endpoint)
        status, page = await endpoint.get("/metrics")
        if status != 200:
            return EngineFacts(version=version)
        return replace(read_facts(_EXPOSITION.read(page)), version=version)

    async def cache_counters(self, endpoint: Endpoint) -> CacheCounters | None:
        """Read ``/metrics``; what a connector brought in is a hit, too."""
        status, page = await endpoint.get("/metrics")
        samples = _COUNTERS.read(page if status == 200 else b"")
        queried, hit = samples.total(QUERIED, RANK), samples.total(HIT, RANK)
        if queried is None or hit is None:
            return None
        return CacheCounters(queried, hit + (samples.total(HIT_OUTSIDE, RANK) or 0))

    async def event_sources(self, endpoint: Endpoint) -> list[EventAddress]:
        """Read ``/kv_event_sources``; older releases have none."""
        answer = await endpoint.get_object(PATH)
        return read_sources(answer or {}, host_of(endpoint.url))

    async def snapshot(self, endpoint: Endpoint) -> Snapshot | None:
        """Ask the in-engine plugin, where it is loaded."""
        return await read_snapshot(endpoint)

    def kv_control(self, endpoint: Endpoint) -> KVControl:
        """Return the plugin's levers; without it, what developer mode offers."""
        return StockKVControl(endpoint, FLUSH, NEED)

    def remedy(self, lack: Lack, version: str | None) -> str:
        """Return vLLM's flag; prefix caching was opt-in before 0.8."""
        if lack == "prefix_caching" and not caches_by_default(version):
            return OPT_IN
        return super().remedy(lack, version)

    async def tokenize(
        self, endpoint: Endpoint, body: Mapping[str, object]
    ) -> "array[int] | None":
        """Ask ``/tokenize``."""
        return await ask_tokens(endpoint, "/tokenize", body)

    async def recognises(self, endpoint: Endpoint, models: Sequence[ModelCard]) -> bool:
        """Recognise by the models' owner, else by ``/version`` and ``/metrics``."""
        if "vllm" in owners(models):
            return True
        if await self._version(endpoint) is None:
            return False
        status, page = await endpoint.get("/metrics")
        return status == 200 and b"vllm:" in page

    async def _version(self, endpoint: Endpoint) -> str | None:
        try:
            answer = await endpoint.get_object("/version")
        except ProtocolMismatch:
            return None
        version = answer.get("version") if answer else None
        return version if isinstance(version, str) else None


def read_facts(samples: Samples) -> EngineFacts:
    """Turn vLLM's metrics into facts.

    The capacity is that of the cache's blocks, ``num_gpu_blocks * block_size``,
    over all data-parallel engines; blocks of engines that are not up yet are
    written as ``None`` and leave it unknown.
    """
    configs = {one.labels.get(RANK, ""): one.labels for one in samples.all(CONFIG)}
    sizes = [_number(labels.get("block_size")) for labels in configs.values()]
    blocks = [_number(labels.get("num_gpu_blocks")) for labels in configs.values()]
    block_size = sizes[0] if sizes else None
    capacity = sum(b * s for b, s in zip(blocks, sizes, strict=True) if b and s)
    usage = samples.mean(USAGE, RANK)
    start = samples.first(START_TIME)
    caching = {labels.get("enable_prefix_caching") for labels in configs.values()}
    return EngineFacts(
        block_size=block_size,
        capacity_tokens=capacity if capacity and all(blocks) else None,
        kv_usage=samples.mean(OLD_USAGE, RANK) if usage is None else usage,
        running=samples.total(RUNNING, RANK),
        waiting=samples.total(WAITING, RANK),
        boot_id=None if start is None else repr(start),
        dp_ranks=len(configs) or None,
        prefix_caching=_SWITCH.get(caching.pop()) if len(caching) == 1 else None,
    )


def _number(text: str | None) -> int | None:
    number = int(text) if text and text.isascii() and text.isdigit() else 0
    return number or None
