"""Metrics under vLLM's names: whatever reads vLLM reads this engine."""

from collections.abc import Callable, Iterator

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stats import (
    EngineObserver,
    EngineStats,
    FinishedRequest,
)

RANK = "0"

# vLLM's, so that panels of both line up.
TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
E2E_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)

_LABELS = ("model_name", "engine")
_GAUGES: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("num_requests_running", "Sequences in the running batch.", lambda s: s.running),
    ("num_requests_waiting", "Sequences waiting to run.", lambda s: s.waiting),
    (
        "kv_cache_usage_perc",
        "Share of the KV blocks in use; 1 is all of them.",
        lambda s: s.kv_usage,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    (
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_queries,
    ),
    (
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda s: s.prefix_hits,
    ),
    ("num_preemptions", "Sequences to be computed anew.", lambda s: s.preemptions),
    ("prompt_tokens", "Prompt tokens processed.", lambda s: s.prompt_tokens),
    ("generation_tokens", "Tokens generated.", lambda s: s.generation_tokens),
)


class EngineMetrics(EngineObserver):
    """Measure an engine's requests; the compute thread calls, scrapes read.

    Args:
        model: Label ``model_name`` of every series.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.registry = CollectorRegistry()
        self._first = self._histogram(
            "time_to_first_token_seconds",
            "Seconds from submission to the first token.",
            TTFT_BUCKETS_S,
        )
        self._gap = self._histogram(
            "inter_token_latency_seconds",
            "Seconds between two tokens of a choice.",
            ITL_BUCKETS_S,
        )
        self._whole = self._histogram(
            "e2e_request_latency_seconds",
            "Seconds from submission to the end of a request.",
            E2E_BUCKETS_S,
        )
        self._finished = Counter(
            "vllm:request_success",
            "Choices that ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)

    def first_token(self, request: GenerationRequest, ttft_s: float) -> None:
        """Observe a time to first token."""
        self._first.observe(ttft_s)

    def inter_token(self, request: GenerationRequest, gap_s: float) -> None:
        """Observe an inter-token latency."""
        self._gap.observe(gap_s)

    def finished(self, outcome: FinishedRequest) -> None:
        """Observe the end of a request."""
        self._whole.observe(outcome.e2e_s)
        for reason in outcome.reasons:
            self._finished.labels(self.model, RANK, reason).inc()

    def watch(self, stats: Callable[[], EngineStats], max_model_len: int) -> None:
        """Expose what *stats* returns at each scrape."""
        self.registry.register(_StatsCollector(self.model, stats, max_model_len))

    async def show(self, request: web.Request) -> web.Response:
        """Expose all of it, in OpenMetrics when the scraper asks for it."""
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        body = encode(self.registry)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self.registry
        )
        return family.labels(self.model, RANK)


class _StatsCollector(Collector):
    """Turn the engine's own counts into metrics."""

    def __init__(
        self, model: str, stats: Callable[[], EngineStats], max_model_len: int
    ) -> None:
        self._model = model
        self._stats = stats
        self._max_model_len = max_model_len

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they stand."""
        stats = self._stats()
        series = (self._model, RANK)
        for name, text, read in _GAUGES:
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric(series, read(stats))
            yield gauge
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric(series, read(stats))
            yield counter
        yield self._config(stats)

    def _config(self, stats: EngineStats) -> Metric:
        facts = {
            "engine": RANK,
            "block_size": str(stats.block_size),
            "num_gpu_blocks": str(stats.num_blocks),
            "enable_prefix_caching": "True",
            "max_model_len": str(self._max_model_len),
        }
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "The KV cache, as labels.", labels=[*facts]
        )
        info.add_metric([*facts.values()], 1)
        return info
