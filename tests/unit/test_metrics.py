import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from warmroute.proxy.admin.state import IndexFacts, ReloadStatus
from warmroute.proxy.conductor.exposition import ConductorExposition
from warmroute.proxy.event_metrics import EventExposition
from warmroute.proxy.ledger import Ledger
from warmroute.proxy.ledger.decision import Decision, Roster
from warmroute.proxy.metrics import Exposition, build_registry
from warmroute.proxy.policy_metrics import PolicyExposition
from warmroute.proxy.records.exposition import RecordsExposition

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


class FakeView:
    """A view that holds seven blocks of each backend."""

    def facts(self, name: str) -> dict[str, Any]:
        return {"source": "mirror", "blocks": 7}

    def tree(self, name: str, depth: int) -> Any:
        return []


def exposition(ledger: Ledger, reloads: ReloadStatus | None = None) -> Exposition:
    backends = {
        "a": SimpleNamespace(name="a", state="up"),
        "b": SimpleNamespace(name="b", state="down"),
    }
    fleet: Any = SimpleNamespace(backends=backends)
    return Exposition(
        *(ledger, fleet, FakeView(), lambda: IndexFacts(1000, 4000, 14)),
        *(reloads or ReloadStatus(True, 1234.0), "1.2.3", lambda: EXACT),
    )


EXACT: Any = SimpleNamespace(
    num_exact={"smol": 3},
    fallbacks={("smol", "busy"): 2},
    parity=lambda: [("smol", "a", True), ("smol", "b", False)],
    memo=SimpleNamespace(num_bytes=77),
)


def scrape(ledger: Ledger, reloads: ReloadStatus | None = None) -> dict[str, float]:
    """Return every sample by its name and labels, as Prometheus reads them."""
    text = generate_latest(build_registry(exposition(ledger, reloads))).decode()
    return {
        sample.name
        + "".join(
            f" {key}={value}" for key, value in sorted(sample.labels.items())
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def heard() -> EventExposition:
    """Return the metrics of one backend whose events were heard."""
    track = SimpleNamespace(num_events={"stored": 3}, num_skipped=1, num_orphans=2)
    sequencer = SimpleNamespace(num_gaps=4)
    stream: Any = SimpleNamespace(
        track=track, sequencer=sequencer, num_replays=5, lag_s=0.5, status="live"
    )
    return EventExposition(lambda: {"a": [stream]})


def test_kv_events_are_counted() -> None:
    """What the streams of the backends know is exposed, a backend each."""
    text = generate_latest(build_registry(heard())).decode()
    for line in (
        'warmroute_kv_events_total{backend="a",type="stored"} 3.0',
        'warmroute_kv_event_gaps_total{backend="a"} 4.0',
        'warmroute_kv_event_replays_total{backend="a"} 5.0',
        'warmroute_kv_events_skipped_total{backend="a"} 1.0',
        'warmroute_kv_event_lag_seconds{backend="a"} 0.5',
        'warmroute_kv_event_orphans{backend="a"} 2.0',
        'warmroute_kv_view_live{backend="a"} 1.0',
    ):
        assert line in text


def busy_ledger() -> Ledger:
    ledger = Ledger()
    ledger.know_models(["smol"])
    roster = Roster(["a", "b"], ["up", "up"], ["mirror", "mirror"], [0, 1])
    for at in range(2):
        decision = Decision(
            *(f"r{at}", 1000.0, "/v1/completions", "smol", "exact", 100),
            *("round_robin", roster, [48, 64], 0, "load"),
        )
        ledger.open(decision, 15e-6)
        if at == 0:
            assert decision.flow is not None
            decision.flow.inter_token.observe(0.02)
            ledger.settle(
                decision, status=200, duration_s=1.0, cached_tokens=32, ttft_s=0.3
            )
    ledger.rejected("model_not_found")
    ledger.policy_failed("mine")
    return ledger


def test_a_request_is_counted_everywhere() -> None:
    """Traffic, tokens and routing all show the request."""
    samples = scrape(busy_ledger())
    flow = "backend=a model=smol"
    by_class = "warmroute_prompt_tokens_by_class_total"
    expected = {
        "warmroute_requests_total backend=a code=200 model=smol": 1,
        f"warmroute_request_duration_seconds_count {flow}": 1,
        f"warmroute_time_to_first_token_seconds_sum {flow}": 0.3,
        "warmroute_time_to_first_token_seconds_bucket backend=a le=0.25 model=smol": 0,
        "warmroute_time_to_first_token_seconds_bucket backend=a le=0.5 model=smol": 1,
        "warmroute_inter_token_latency_seconds_bucket backend=a le=0.025 model=smol": 1,
        f"warmroute_prompt_tokens_total {flow}": 100,
        f"warmroute_predicted_cached_tokens_total {flow}": 48,
        f"warmroute_engine_cached_tokens_total {flow}": 32,
        f"warmroute_unreported_requests_total {flow}": 0,
        f"{by_class} backend=a class=hit model=smol": 32,
        f"{by_class} backend=a class=cold model=smol": 36,
        f"{by_class} backend=a class=elsewhere model=smol": 16,
        f"{by_class} backend=a class=unpredicted model=smol": 16,
        "warmroute_routing_decisions_total backend=a policy=round_robin reason=load": 2,
        "warmroute_routing_duration_seconds_bucket le=1e-05": 0,
        "warmroute_routing_duration_seconds_bucket le=2e-05": 2,
        "warmroute_rejected_total reason=model_not_found": 1,
        "warmroute_policy_errors_total plugin=mine": 1,
        "warmroute_requests_in_flight backend=a": 1,
        "warmroute_requests_in_flight backend=b": 0,
    }
    assert expected == {key: samples.get(key) for key in expected}


def test_the_fleet_and_the_index_are_shown() -> None:
    """Gauges are read at the scrape."""
    samples = scrape(Ledger())
    expected = {
        "warmroute_backend_up backend=a": 1,
        "warmroute_backend_up backend=b": 0,
        "warmroute_index_blocks backend=a": 7,
        "warmroute_index_memory_bytes": 1000,
        "warmroute_index_memory_cap_bytes": 4000,
        "warmroute_build_info version=1.2.3": 1,
        "warmroute_config_last_reload_successful": 1,
        "warmroute_config_last_reload_success_timestamp_seconds": 1234,
    }
    assert expected == {key: samples.get(key) for key in expected}
    assert samples["process_resident_memory_bytes"] > 0


def test_a_refused_reload_shows_and_keeps_the_last_good_time() -> None:
    """The alert is on 0; the time tells since when."""
    reloads = ReloadStatus(True, 1234.0)
    reloads.failed()
    samples = scrape(Ledger(), reloads)
    assert samples["warmroute_config_last_reload_successful"] == 0
    assert samples["warmroute_config_last_reload_success_timestamp_seconds"] == 1234


def test_openmetrics_can_be_rendered() -> None:
    """A scraper that asks for OpenMetrics gets a complete exposition."""
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    text = encode(build_registry(exposition(busy_ledger()))).decode()
    assert text.endswith("# EOF\n")


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    """docs/metrics.md and the exposition list the same metrics."""
    row = re.compile(r"^\| `(warmroute_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
    documented = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in row.findall(DOCS.read_text())
    }
    exposed = {}
    records = RecordsExposition(lambda: None)
    families = [*exposition(busy_ledger()).collect(), *heard().collect()]
    families += records.collect()
    nothing: Any = SimpleNamespace(queue=None, shadow=None)
    families += PolicyExposition(nothing).collect()
    idle: Any = SimpleNamespace(
        actions=SimpleNamespace(counts={}),
        num_copied_tokens=0,
        num_failures=0,
        retained_blocks={},
    )
    nobody: Any = SimpleNamespace(backends={})
    families += ConductorExposition(idle, nobody).collect()
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = getattr(family, "_labelnames", ())
        exposed[name] = (family.type, tuple(labels))
    assert documented == exposed


def test_exact_prompts_show_how_they_fare() -> None:
    samples = scrape(busy_ledger())
    assert samples["warmroute_exact_prompts_total model=smol"] == 3
    assert samples["warmroute_exact_prompt_fallbacks_total model=smol reason=busy"] == 2
    assert samples["warmroute_tokenizer_parity backend=a model=smol"] == 1
    assert samples["warmroute_tokenizer_parity backend=b model=smol"] == 0
    assert samples["warmroute_prompt_memo_bytes"] == 77


def test_no_label_comes_from_a_client() -> None:
    """Names, ids, paths and kinds that clients make up add no series."""

    def series(num: int) -> set[str]:
        ledger = busy_ledger()
        roster = Roster(["a", "b"], ["up", "up"], ["mirror", "mirror"], [0, 1])
        for at in range(num):
            decision = Decision(
                *(f"id-{at}", 1000.0, f"/v1/{at}", f"model-{at}", "exact", 100),
                *("round_robin", roster, [48, 64], at % 2, f"reason-{at}"),
            )
            ledger.open(decision, 15e-6)
            ledger.settle(decision, status=200, duration_s=1.0, ttft_s=0.3)
        return set(scrape(ledger))

    assert series(500) == series(2)
