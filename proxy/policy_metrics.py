"""Prometheus metrics of the queue and the shadow, read when somebody scrapes."""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from warmroute.proxy.deciding import Deciding
from warmroute.proxy.queue import HoldQueue
from warmroute.proxy.shadow import Shadow

_SIDES = ("first", "shadow")


class PolicyExposition(Collector):
    """Collect ``warmroute_queue_*`` and ``warmroute_shadow_*``; see docs/metrics.md.

    Args:
        deciding: Has the queue and the second policy, where there are some.
    """

    def __init__(self, deciding: Deciding) -> None:
        self._deciding = deciding

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they stand."""
        yield from _queue_metrics(self._deciding.queue)
        yield from _shadow_metrics(self._deciding.shadow)


def _queue_metrics(queue: HoldQueue | None) -> Iterator[Metric]:
    held = GaugeMetricFamily(
        "warmroute_queue_requests",
        "Requests that the router holds for a busy backend.",
        labels=("backend",),
    )
    outcomes = CounterMetricFamily(
        "warmroute_queue_outcomes",
        "Ends of requests in the queue, and those it refused, by outcome.",
        labels=("outcome",),
    )
    waits = HistogramMetricFamily(
        "warmroute_queue_wait_seconds",
        "Seconds that requests were held before they were sent.",
        labels=(),
    )
    if queue is not None:
        for name, line in queue.facts()["backends"].items():
            held.add_metric((name,), line["requests"])
        for outcome, number in queue.outcomes.items():
            outcomes.add_metric((outcome,), number)
        waits.add_metric((), queue.waits.cumulative(), sum_value=queue.waits.sum)
    yield held
    yield outcomes
    yield waits


def _shadow_metrics(shadow: Shadow | None) -> Iterator[Metric]:
    decisions = CounterMetricFamily(
        "warmroute_shadow_decisions",
        "Decisions of the shadow policy, by whether the first chose the same.",
        labels=("policy", "agreed"),
    )
    seconds = CounterMetricFamily(
        "warmroute_shadow_expected_ttft_seconds",
        "Expected seconds to the first token where each policy sent the requests.",
        labels=("policy", "side"),
    )
    tokens = CounterMetricFamily(
        "warmroute_shadow_matched_tokens",
        "Cached tokens that the view promised where each policy sent the requests.",
        labels=("policy", "side"),
    )
    if shadow is not None:
        name = shadow.policy.name
        decisions.add_metric((name, "true"), shadow.agreed)
        decisions.add_metric((name, "false"), shadow.requests - shadow.agreed)
        for side, ttft_s, matched in zip(
            _SIDES, shadow.ttft_s, shadow.matched, strict=True
        ):
            seconds.add_metric((name, side), ttft_s)
            tokens.add_metric((name, side), matched)
    yield decisions
    yield seconds
    yield tokens
