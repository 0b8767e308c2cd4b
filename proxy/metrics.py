"""Prometheus metrics: the ledger's counts, read only when somebody scrapes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from warmroute.proxy.admin.state import (
    BackendFacts,
    IndexFacts,
    ReloadStatus,
    ViewPort,
)
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.flow import Flow
from warmroute.proxy.ledger.histogram import Histogram
from warmroute.proxy.ledger.tokens import TokenClasses
from warmroute.proxy.prompt.exact import ExactPrompts

Rows = Iterable[tuple[tuple[str, ...], float]]

_FLOW = ("model", "backend")


class BackendsPort(Protocol):
    """The fleet, as far as metrics show it."""

    @property
    def backends(self) -> Mapping[str, BackendFacts]:
        """All configured backends by name."""
        ...


class Exposition(Collector):
    """Collect every ``warmroute_`` metric; documented in docs/metrics.md."""

    def __init__(
        self,
        ledger: Ledger,
        fleet: BackendsPort,
        view: ViewPort,
        index: Callable[[], IndexFacts],
        reloads: ReloadStatus,
        version: str,
        prompts: Callable[[], ExactPrompts | None] = lambda: None,
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._view = view
        self._index = index
        self._reloads = reloads
        self._version = version
        self._exact = prompts

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they stand."""
        flows = self._ledger.flows()
        yield from _traffic(flows)
        yield from _tokens(flows)
        yield from self._routing()
        yield from self._backends(flows)
        yield from self._prompts()
        yield from self._process()

    def _routing(self) -> Iterator[Metric]:
        ledger = self._ledger
        yield _counter(
            "routing_decisions",
            "Requests sent, by policy, reason and chosen backend.",
            ("policy", "reason", "backend"),
            ledger.choices.items(),
        )
        yield _histogram(
            "routing_duration_seconds",
            "Seconds from the parsed request to the decision.",
            (),
            [((), ledger.routing)],
        )
        yield _counter(
            "retries",
            "Requests sent to another backend, by reason.",
            ("reason",),
            _keyed(ledger.retries),
        )
        yield _counter(
            "rejected",
            "Requests that warmroute answered itself, before any backend, by reason.",
            ("reason",),
            _keyed(ledger.rejections),
        )
        yield _counter(
            "policy_errors",
            "Exceptions of a policy plugin; the least loaded backend took over.",
            ("plugin",),
            _keyed(ledger.policy_errors),
        )

    def _backends(self, flows: list[Flow]) -> Iterator[Metric]:
        backends = self._fleet.backends
        in_flight = dict.fromkeys(backends, 0)
        for flow in flows:
            if flow.backend in in_flight:
                in_flight[flow.backend] += flow.in_flight
        yield _gauge(
            "requests_in_flight",
            "Requests sent to a backend and not yet ended.",
            ("backend",),
            _keyed(in_flight),
        )
        yield _gauge(
            "backend_up",
            "1 while the backend gets requests, else 0.",
            ("backend",),
            (((name,), float(b.state == "up")) for name, b in backends.items()),
        )
        yield _gauge(
            "index_blocks",
            "Blocks that the view holds for a backend.",
            ("backend",),
            (((name,), self._view.facts(name)["blocks"]) for name in backends),
        )
        index = self._index()
        yield _gauge(
            "index_memory_bytes",
            "Bytes of the prefix index over all backends.",
            (),
            [((), index.bytes)],
        )
        yield _gauge(
            "index_memory_cap_bytes",
            "The bytes that the prefix index may use at most.",
            (),
            [((), index.cap_bytes)],
        )

    def _prompts(self) -> Iterator[Metric]:
        exact = self._exact()
        made = {} if exact is None else exact.num_exact
        fallbacks = {} if exact is None else exact.fallbacks
        parity = () if exact is None else exact.parity()
        num_bytes = 0 if exact is None else exact.memo.num_bytes
        yield _counter(
            "exact_prompts",
            "Prompts that were tokenized as the engine does it.",
            ("model",),
            _keyed(made),
        )
        yield _counter(
            "exact_prompt_fallbacks",
            "Prompts of a model with a tokenizer that stayed estimates, by reason.",
            ("model", "reason"),
            fallbacks.items(),
        )
        yield _gauge(
            "tokenizer_parity",
            "1 if a backend makes the same tokens of a model's prompts, 0 if others.",
            ("model", "backend"),
            (((one, name), float(same)) for one, name, same in parity),
        )
        yield _gauge(
            "prompt_memo_bytes",
            "Bytes of texts and tokens that are remembered.",
            (),
            [((), num_bytes)],
        )

    def _process(self) -> Iterator[Metric]:
        reloads = self._reloads
        yield _gauge(
            "config_last_reload_successful",
            "1 when the last load of the configuration was good, else 0.",
            (),
            [((), float(reloads.is_good))],
        )
        yield _gauge(
            "config_last_reload_success_timestamp_seconds",
            "Unix time of the last good load of the configuration.",
            (),
            [((), reloads.last_good_time)],
        )
        yield _gauge(
            "build_info",
            "1, with the version as a label.",
            ("version",),
            [((self._version,), 1)],
        )


def build_registry(*expositions: Collector) -> CollectorRegistry:
    """Return a registry of *expositions* and the process's own metrics."""
    registry = CollectorRegistry()
    for exposition in expositions:
        registry.register(exposition)
    ProcessCollector(registry=registry)
    return registry


def _traffic(flows: list[Flow]) -> Iterator[Metric]:
    yield _counter(
        "requests",
        "Requests that a backend was chosen for, by the client's status code.",
        (*_FLOW, "code"),
        (
            ((flow.model, flow.backend, str(code)), num)
            for flow in flows
            for code, num in flow.codes.items()
        ),
    )
    yield _histogram(
        "request_duration_seconds",
        "Seconds from a request's arrival to its end.",
        _FLOW,
        (((flow.model, flow.backend), flow.duration) for flow in flows),
    )
    yield _histogram(
        "time_to_first_token_seconds",
        "Seconds from a request's arrival to its first token.",
        _FLOW,
        (((flow.model, flow.backend), flow.first_token) for flow in flows),
    )
    yield _histogram(
        "inter_token_latency_seconds",
        "Seconds between two chunks of a stream.",
        _FLOW,
        (((flow.model, flow.backend), flow.inter_token) for flow in flows),
    )


def _tokens(flows: list[Flow]) -> Iterator[Metric]:
    counts: tuple[tuple[str, str, Callable[[Flow], int]], ...] = (
        ("prompt_tokens", "Prompt tokens.", lambda flow: flow.prompt_tokens),
        (
            "predicted_cached_tokens",
            "Prompt tokens that the view promised to be cached.",
            lambda flow: flow.predicted_tokens,
        ),
        (
            "engine_cached_tokens",
            "Prompt tokens that the engine reported as cached.",
            lambda flow: flow.cached_tokens,
        ),
        (
            "unreported_requests",
            "Requests whose answer did not report cached tokens.",
            lambda flow: flow.unreported,
        ),
    )
    for name, text, read in counts:
        rows = [((flow.model, flow.backend), read(flow)) for flow in flows]
        yield _counter(name, text, _FLOW, rows)
    yield _counter(
        "prompt_tokens_by_class",
        "Prompt tokens by class; evicted, elsewhere and unpredicted are paid twice.",
        (*_FLOW, "class"),
        (
            ((flow.model, flow.backend, kind), num)
            for flow in flows
            for kind, num in zip(
                TokenClasses._fields, flow.tokens.snapshot(), strict=True
            )
        ),
    )


def _keyed(counts: Mapping[str, int]) -> Rows:
    return (((key,), num) for key, num in counts.items())


def _counter(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    family = CounterMetricFamily(f"warmroute_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Rows) -> Metric:
    family = GaugeMetricFamily(f"warmroute_{name}", text, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _histogram(
    name: str,
    text: str,
    labels: tuple[str, ...],
    rows: Iterable[tuple[tuple[str, ...], Histogram]],
) -> Metric:
    family = HistogramMetricFamily(f"warmroute_{name}", text, labels=labels)
    for values, histogram in rows:
        family.add_metric(values, histogram.cumulative(), sum_value=histogram.sum)
    return family
