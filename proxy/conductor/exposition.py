"""Prometheus metrics of the conductor, read only when somebody scrapes."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from warmroute.proxy.conductor.conductor import Conductor
from warmroute.proxy.fleet import Fleet


class ConductorExposition(Collector):
    """Collect the ``warmroute_conductor_`` metrics; see docs/metrics.md.

    Args:
        conductor: Counts what it does.
        fleet: Knows how large the blocks of each backend are.
    """

    def __init__(self, conductor: Conductor, fleet: Fleet) -> None:
        self._conductor = conductor
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they stand."""
        conductor = self._conductor
        actions = CounterMetricFamily(
            "warmroute_conductor_actions",
            "Actions of the conductor that have an outcome.",
            labels=("kind", "outcome"),
        )
        for labels, number in conductor.actions.counts.items():
            actions.add_metric(labels, number)
        yield actions
        yield CounterMetricFamily(
            "warmroute_conductor_copied_tokens",
            "Prompt tokens that were computed for nobody but a copy.",
            value=conductor.num_copied_tokens,
        )
        yield CounterMetricFamily(
            "warmroute_conductor_failures",
            "Faults of the conductor itself, and refusals of engines.",
            value=conductor.num_failures,
        )
        yield self._retained()

    def _retained(self) -> Metric:
        retained = GaugeMetricFamily(
            "warmroute_conductor_retained_tokens",
            "Tokens that an engine keeps for the conductor.",
            labels=("backend",),
        )
        blocks = self._conductor.retained_blocks
        for name, backend in self._fleet.backends.items():
            size = backend.block_size or 0
            retained.add_metric((name,), blocks.get(name, 0) * size)
        return retained
