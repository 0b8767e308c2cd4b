"""The files of examples/observability fit together and name what is there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from warmroute.proxy.config import load_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "observability"
METRIC = re.compile(r"\bwarmroute_[a-z_]+")
DOCUMENTED = set(METRIC.findall((ROOT / "docs" / "metrics.md").read_text()))
BOARD = json.loads((FOLDER / "grafana" / "warmroute.json").read_text())
RULES = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
STACKS = sorted(FOLDER.glob("compose.*.yaml"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPECTED = (
    *("requests_total", "request_duration_seconds", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "routing_decisions_total"),
    *("routing_duration_seconds", "prompt_tokens_total", "backend_up"),
    *("predicted_cached_tokens_total", "engine_cached_tokens_total"),
    *("requests_in_flight", "index_blocks", "index_memory_bytes"),
    *("kv_events_total", "kv_event_gaps_total", "kv_event_lag_seconds"),
    *("retries_total", "rejected_total", "policy_errors_total", "build_info"),
    *("config_last_reload_successful",),
    *("config_last_reload_success_timestamp_seconds",),
)


def names(expression: str) -> set[str]:
    """Return the metrics of an expression as docs/metrics.md names them."""
    found = METRIC.findall(expression)
    return {name.removesuffix("_bucket") for name in found}


def test_every_metric_that_is_promised_is_documented() -> None:
    assert {f"warmroute_{name}" for name in EXPECTED} <= DOCUMENTED


def test_every_metric_says_what_to_do() -> None:
    """A row has type, labels, meaning and what to do; only labels may be none."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `warmroute_")]
    assert len(rows) > 30
    for row in rows:
        cells = (cell.strip() for cell in row.removesuffix("|").split("|")[1:])
        name, kind, _, meaning, action = cells
        assert kind in ("counter", "gauge", "histogram"), name
        assert meaning, name
        assert action, name


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panels_ask_for_documented_metrics(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert names(target["expr"]) <= DOCUMENTED


def test_panels_have_places_of_their_own() -> None:
    """No two share an id, and none lies over another."""
    seen: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & seen, panel["title"]
        seen |= cells
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_are_complete(rule: dict[str, Any]) -> None:
    """Each knows its metrics, who is called, and what to do, and has a test."""
    assert names(rule["expr"]) <= DOCUMENTED
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    tests = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]
    fired = [
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    ]
    assert rule["alert"] in fired


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.stem)
def test_stacks_are_whole(path: Path) -> None:
    """Images have a version, mounted files are there, ports are on loopback."""
    stack = yaml.safe_load(path.read_text())
    services = stack["services"]
    assert {"collector", "prometheus", "grafana"} < set(services)
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        assert set(service.get("depends_on", ())) <= set(services)
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).is_file(), volume
            else:
                assert source in stack["volumes"], volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("path", STACKS, ids=lambda path: path.stem)
def test_spans_go_from_the_collector_to_the_store(path: Path) -> None:
    """The collector hears what config.yaml sends, and knows the store by its name."""
    store = path.stem.removeprefix("compose.")
    collector = yaml.safe_load((FOLDER / f"collector.{store}.yaml").read_text())
    (exporter,) = collector["service"]["pipelines"]["traces"]["exporters"]
    assert collector["exporters"][exporter]["endpoint"] == f"{store}:4317"
    heard = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    config = load_config(FOLDER / "config.yaml", {})
    assert config.tracing is not None
    assert config.tracing.endpoint.rpartition(":")[2] == heard.rpartition(":")[2]
    sources = yaml.safe_load(
        (FOLDER / "grafana" / f"datasources.{store}.yaml").read_text()
    )
    assert {one["type"] for one in sources["datasources"]} == {"prometheus", store}


def test_prometheus_scrapes_the_admin_port() -> None:
    scraped = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    config = load_config(FOLDER / "config.yaml", {})
    assert job["job_name"] == "warmroute"
    assert job["static_configs"][0]["targets"] == [str(config.admin)]
    assert config.admin is not None
    assert config.admin.is_loopback
