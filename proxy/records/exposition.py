"""Prometheus metrics of the access records, read only when somebody scrapes."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from warmroute.proxy.records.recorder import Recorder


class RecordsExposition(Collector):
    """Collect the ``warmroute_access_records_`` metrics; see docs/metrics.md.

    Args:
        recorder: Returns what records; None while nothing does.
    """

    def __init__(self, recorder: Callable[[], Recorder | None]) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they stand."""
        recorder = self._recorder()
        written = 0 if recorder is None else recorder.writer.num_written
        yield CounterMetricFamily(
            "warmroute_access_records_written",
            "Access records that are in the file.",
            value=written,
        )
        dropped = CounterMetricFamily(
            "warmroute_access_records_dropped",
            "Access records that were dropped, by reason.",
            labels=("reason",),
        )
        overflown = 0 if recorder is None else recorder.num_overflown
        failed = 0 if recorder is None else recorder.writer.num_lost
        dropped.add_metric(("queue_full",), overflown)
        dropped.add_metric(("write_failed",), failed)
        yield dropped
