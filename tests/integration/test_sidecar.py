"""The Kubernetes manifest of examples/02_sidecar agrees with itself."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from warmroute.proxy.config import Config, load_config

MANIFEST = Path(__file__).parents[2] / "examples" / "02_sidecar" / "kubernetes.yaml"
SPARE_S = 5
MIB = 2**20
# The process itself, the decision records, and the index with its slack.
BASE_BYTES = 80 * MIB
SLACK_BYTES = 96 * MIB
INDEX_FACTOR = 1.25
SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def drain_s(config: Config) -> float:
    return config.drain.delay_s + config.drain.timeout_s


def needed_bytes(config: Config) -> float:
    """Return what the process may grow to, by its own bounds."""
    index = config.index.max_bytes * INDEX_FACTOR
    return BASE_BYTES + SLACK_BYTES + index + config.decisions.max_bytes


def parse_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * SUFFIXES[quantity[-2:]]


@pytest.fixture
def objects() -> dict[str, Any]:
    """Return the manifest's objects by kind."""
    text = MANIFEST.read_text()
    return {item["kind"]: item for item in yaml.safe_load_all(text)}


@pytest.fixture
def pod(objects: dict[str, Any]) -> Any:
    return objects["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def sidecar(pod: Any) -> Any:
    (container,) = pod["initContainers"]
    return container


@pytest.fixture
def config(objects: dict[str, Any], tmp_path: Path) -> Config:
    """Load what the ConfigMap holds."""
    path = tmp_path / "config.yaml"
    path.write_text(objects["ConfigMap"]["data"]["config.yaml"])
    return load_config(path, {})


@pytest.fixture
def ports(sidecar: Any) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in sidecar["ports"]}


def test_is_a_native_sidecar(sidecar: Any) -> None:
    """An init container that restarts is started first and stopped last."""
    assert sidecar["restartPolicy"] == "Always"
    assert "startupProbe" in sidecar


@pytest.mark.parametrize(
    ("probe", "path"),
    [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ],
)
def test_probes_ask_the_data_port(
    probe: str, path: str, sidecar: Any, ports: dict[str, int], config: Config
) -> None:
    """Only readiness depends on engines, so no engine can restart the proxy."""
    request = sidecar[probe]["httpGet"]
    assert path == request["path"]
    assert config.listen.port == ports[request["port"]]


def test_kubelet_can_reach_the_probes(config: Config) -> None:
    """Probes come to the pod's address, where a loopback listener is deaf."""
    assert config.listen.host in ("0.0.0.0", "::")


def test_admin_port_stays_in_the_pod(config: Config) -> None:
    """The admin port needs no password because nobody else reaches it."""
    assert config.admin is not None
    assert config.admin.host == "127.0.0.1"


def test_only_the_application_port_is_open(objects: dict[str, Any]) -> None:
    """Other pods may not use the proxy that listens on all addresses."""
    (rule,) = objects["NetworkPolicy"]["spec"]["ingress"]
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert [port["name"] for port in container["ports"]] == [
        port["port"] for port in rule["ports"]
    ]


def test_application_uses_the_proxy(pod: Any, config: Config) -> None:
    """The application's base URL is the proxy's listener on loopback."""
    (container,) = pod["containers"]
    urls = {item["name"]: item["value"] for item in container["env"]}
    expected = f"http://127.0.0.1:{config.listen.port}/v1"
    assert expected == urls["OPENAI_BASE_URL"]


def test_grace_period_covers_pause_and_drain(pod: Any, config: Config) -> None:
    """The pod is not killed while answers are still under way."""
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = pause + drain_s(config) + SPARE_S
    assert pod["terminationGracePeriodSeconds"] >= needed


def test_config_is_mounted_as_a_directory(pod: Any, sidecar: Any) -> None:
    """A subPath would never see an update of the ConfigMap."""
    (mount,) = sidecar["volumeMounts"]
    assert "subPath" not in mount
    assert mount["readOnly"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
    assert "items" not in volume["configMap"]
    path = sidecar["args"][sidecar["args"].index("-c") + 1]
    assert Path(mount["mountPath"]) == Path(path).parent


def test_mounted_config_map_exists(pod: Any, objects: dict[str, Any]) -> None:
    """The volume names the ConfigMap of the same file."""
    (volume,) = pod["volumes"]
    name = objects["ConfigMap"]["metadata"]["name"]
    assert name == volume["configMap"]["name"]


def test_config_updates_are_taken_up(config: Config) -> None:
    """Kubernetes sends no signal, so the proxy watches the file."""
    assert config.reload.watch


def test_runs_without_privileges(sidecar: Any) -> None:
    """Nothing in the container may write, become root or gain rights."""
    security = sidecar["securityContext"]
    assert security["runAsNonRoot"]
    assert security["runAsUser"] > 0
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"]["drop"] == ["ALL"]


def test_memory_limit_covers_the_bounds(sidecar: Any, config: Config) -> None:
    """Index and records at their caps do not get the container killed."""
    resources = sidecar["resources"]
    assert parse_bytes(resources["limits"]["memory"]) >= needed_bytes(config)
    assert {"cpu", "memory"} == set(resources["requests"])
    assert "cpu" not in resources["limits"], "throttling would delay every token"
