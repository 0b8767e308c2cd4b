"""SGLang over HTTP: what it tells about itself without any plugin."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from warmroute.adapters.base import (
    CacheCounters,
    Endpoint,
    EngineFacts,
    EventAddress,
    KVControl,
    ModelCard,
    Snapshot,
)
from warmroute.adapters.exposition import Exposition, combined
from warmroute.adapters.kv_client import read_snapshot
from warmroute.adapters.kv_events.address import host_of
from warmroute.adapters.kv_stock import StockFlush, StockKVControl
from warmroute.adapters.openai import OpenAIAdapter, owners
from warmroute.adapters.sglang.event_sources import read_sources
from warmroute.adapters.sglang.questions import as_sglang_asks
from warmroute.adapters.sglang.remedies import REMEDIES
from warmroute.adapters.tokenize import ask_tokens
from warmroute.policies.errors import ProtocolMismatch

PAGE_SIZE = "sglang:page_size"
CAPACITY = "sglang:max_total_num_tokens"
USAGE = "sglang:token_usage"
RUNNING = "sglang:num_running_reqs"
WAITING = "sglang:num_queue_reqs"
PROMPT_TOKENS = "sglang:prompt_tokens_total"
CACHED_TOKENS = "sglang:cached_tokens_total"
RANK = "dp_rank"
# It is busy for a moment still when it has just answered.
FLUSH = StockFlush("/flush_cache?timeout=1")
NEED = (
    "stock SGLang has no such lever; load the plugin: install warmroute beside it, and "
    "start it with SGLANG_PLUGINS=warmroute and WARMROUTE_KV_TOKEN"
)
INFO_PATHS = ("/server_info", "/get_server_info")
ANY_MODEL = "default"

_EXPOSITION = Exposition((PAGE_SIZE, CAPACITY, USAGE, RUNNING, WAITING))
_COUNTERS = Exposition((PROMPT_TOKENS, CACHED_TOKENS))


class SGLangAdapter(OpenAIAdapter):
    """Read SGLang by ``/server_info``, ``/v1/loads`` and ``/metrics``.

    ``/server_info`` waits for the scheduler, so it is asked once an incarnation;
    load comes from ``/v1/loads``, or from ``/metrics`` where there is none.
    """

    name = "sglang"
    remedies = REMEDIES

    async def facts(
        self, endpoint: Endpoint, known: EngineFacts | None = None
    ) -> EngineFacts:
        """Read the server's settings the first time, its load each time."""
        fixed = known or await self._settings(endpoint)
        loads = await endpoint.get_object("/v1/loads")
        if loads is not None:
            return _with_loads(fixed, loads)
        return await self._with_metrics(endpoint, fixed)

    async def cache_counters(self, endpoint: Endpoint) -> CacheCounters | None:
        """Read ``/metrics``; cached tokens are counted once a source."""
        status, page = await endpoint.get("/metrics")
        samples = _COUNTERS.read(page if status == 200 else b"")
        prompts = samples.all(PROMPT_TOKENS)
        if not prompts:
            return None
        cached = sum(one.value for one in samples.all(CACHED_TOKENS))
        return CacheCounters(round(sum(one.value for one in prompts)), round(cached))

    async def event_sources(self, endpoint: Endpoint) -> list[EventAddress]:
        """Read ``kv_events`` of ``/server_info``."""
        info = await self._info(endpoint)
        config = info.get("kv_events_config")
        return read_sources(info.get("kv_events"), host_of(endpoint.url), config)

    async def snapshot(self, endpoint: Endpoint) -> Snapshot | None:
        """Ask the in-engine plugin, where it is loaded."""
        return await read_snapshot(endpoint)

    def kv_control(self, endpoint: Endpoint) -> KVControl:
        """Return the plugin's levers; without it, a flush."""
        return StockKVControl(endpoint, FLUSH, NEED)

    async def tokenize(
        self, endpoint: Endpoint, body: Mapping[str, object]
    ) -> "array[int] | None":
        """Ask ``/v1/tokenize``, which writes a chat as it does for an answer."""
        question = as_sglang_asks(body)
        if question is None:
            return None
        return await ask_tokens(endpoint, "/v1/tokenize", question)

    async def recognises(self, endpoint: Endpoint, models: Sequence[ModelCard]) -> bool:
        """Recognise by the models' owner, else by what ``/server_info`` holds."""
        if "sglang" in owners(models):
            return True
        info = await self._info(endpoint)
        return "max_total_num_tokens" in info or "radix_eviction_policy" in info

    def serves(self, model: str, models: Mapping[str, ModelCard]) -> bool:
        """Serve what is listed, a LoRA as ``base:lora``, and ``default``."""
        return model in models or _base(model) in models or model == ANY_MODEL

    async def abort(self, endpoint: Endpoint, request_id: str) -> None:
        """Abort by request id: a closed connection does not reach every stage."""
        await endpoint.post("/abort_request", {"rid": request_id})

    async def _info(self, endpoint: Endpoint) -> dict[str, object]:
        for path in INFO_PATHS:
            try:
                info = await endpoint.get_object(path)
            except ProtocolMismatch:
                continue
            if info is not None:
                return info
        return {}

    async def _settings(self, endpoint: Endpoint) -> EngineFacts:
        info = await self._info(endpoint)
        ranks = _count(info.get("dp_size"))
        tokens = _count(info.get("max_total_num_tokens"))
        version, seed = info.get("version"), info.get("random_seed")
        reports = info.get("enable_cache_report")
        disabled = info.get("disable_radix_cache")
        return EngineFacts(
            version=version if isinstance(version, str) else None,
            block_size=_count(info.get("page_size")),
            capacity_tokens=tokens * (ranks or 1) if tokens else None,
            boot_id=None if seed is None else f"seed {seed}",
            reports_cached_tokens=reports if isinstance(reports, bool) else None,
            dp_ranks=ranks,
            prefix_caching=not disabled if isinstance(disabled, bool) else None,
        )

    async def _with_metrics(
        self, endpoint: Endpoint, fixed: EngineFacts
    ) -> EngineFacts:
        status, page = await endpoint.get("/metrics")
        if status != 200:
            return fixed.without_load()
        samples = _EXPOSITION.read(page)
        pages = combined(max, samples.per_rank(PAGE_SIZE, RANK))
        return replace(
            fixed,
            block_size=fixed.block_size or pages,
            capacity_tokens=fixed.capacity_tokens or samples.total(CAPACITY, RANK),
            kv_usage=samples.mean(USAGE, RANK),
            running=samples.total(RUNNING, RANK),
            waiting=samples.total(WAITING, RANK),
            queued_tokens=None,
        )


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Read one key of all data-parallel ranks in an answer of ``/v1/loads``."""

    rows: Sequence[Mapping[str, object]]

    def values(self, key: str) -> list[float]:
        found = (row.get(key) for row in self.rows)
        return [float(one) for one in found if _is_number(one)]  # type: ignore[arg-type]

    def total(self, key: str) -> int | None:
        values = self.values(key)
        return round(sum(values)) if len(values) == len(self.rows) > 0 else None

    def mean(self, key: str) -> float | None:
        values = self.values(key)
        return sum(values) / len(values) if values else None


def _with_loads(fixed: EngineFacts, answer: Mapping[str, object]) -> EngineFacts:
    rows = answer.get("loads")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProtocolMismatch("/v1/loads answered without a list under 'loads'")
    ranks = _Ranks(rows)
    version = answer.get("version")
    return replace(
        fixed,
        version=fixed.version or (version if isinstance(version, str) else None),
        capacity_tokens=fixed.capacity_tokens or ranks.total("max_total_num_tokens"),
        kv_usage=ranks.mean("token_usage"),
        running=ranks.total("num_running_reqs"),
        waiting=ranks.total("num_waiting_reqs"),
        queued_tokens=ranks.total("num_waiting_uncached_tokens"),
        dp_ranks=fixed.dp_ranks or len(rows) or None,
    )


def _base(model: str) -> str | None:
    base, colon, lora = model.rpartition(":")
    return base if colon and lora else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None
