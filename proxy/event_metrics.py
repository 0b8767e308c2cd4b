"""Prometheus metrics of KV events, read only when somebody scrapes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from warmroute.proxy.view.stream import Stream

_LABELS = ("backend",)

Read = Callable[[Stream], float]
Join = Callable[[Iterable[float]], float]
Streams = Mapping[str, Sequence[Stream]]

_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    (
        "kv_event_gaps",
        "Gaps in the numbers of an engine's KV events, healed ones too.",
        lambda stream: stream.sequencer.num_gaps,
    ),
    (
        "kv_event_replays",
        "Replays of KV events that were asked for and came.",
        lambda stream: stream.num_replays,
    ),
    (
        "kv_events_skipped",
        "KV events that were unknown, broken or of layers that do not count.",
        lambda stream: stream.track.num_skipped,
    ),
)
_GAUGES: tuple[tuple[str, str, Read, Join], ...] = (
    (
        "kv_event_lag_seconds",
        "Age of the newest KV events when they were entered.",
        lambda stream: stream.lag_s or 0.0,
        max,
    ),
    (
        "kv_event_orphans",
        "Announced blocks whose parent is not known.",
        lambda stream: stream.track.num_orphans,
        sum,
    ),
    (
        "kv_view_live",
        "1 while a backend's KV events are followed without loss, else 0.",
        lambda stream: float(stream.status == "live"),
        min,
    ),
)


class EventExposition(Collector):
    """Collect the ``warmroute_kv_`` metrics; documented in docs/metrics.md.

    Args:
        streams: Returns the streams of each backend that is heard, one a data-parallel
            rank, by the backend's name.
    """

    def __init__(self, streams: Callable[[], Streams]) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they stand."""
        streams = self._streams()
        events = CounterMetricFamily(
            "warmroute_kv_events",
            "KV events that were entered into the view, by type.",
            labels=("backend", "type"),
        )
        for name, ranks in streams.items():
            numbers: Counter[str] = Counter()
            for stream in ranks:
                numbers += stream.track.num_events
            for kind, number in numbers.items():
                events.add_metric((name, kind), number)
        yield events
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(f"warmroute_{name}", text, labels=_LABELS)
            yield _filled(counter, streams, read, sum)
        for name, text, read, join in _GAUGES:
            gauge = GaugeMetricFamily(f"warmroute_{name}", text, labels=_LABELS)
            yield _filled(gauge, streams, read, join)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily,
    streams: Streams,
    read: Read,
    join: Join,
) -> Metric:
    for name, ranks in streams.items():
        family.add_metric((name,), join(map(read, ranks)))
    return family
