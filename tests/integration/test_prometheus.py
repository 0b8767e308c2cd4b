"""A real Prometheus scrapes warmroute under load, and judges its alerts."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from conformance.rig import post
from integration import served
from integration.engine_process import run_engine
from integration.served import Served, Stage

from warmroute.proxy.demo.child import Child, free_port

stage = served.stage

FOLDER = Path(__file__).parents[2] / "examples" / "observability"
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
WHERE = "on Debian: apt-get install prometheus"
BOARD = json.loads((FOLDER / "grafana" / "warmroute.json").read_text())
VARIABLES = {"$__rate_interval": "30s", "$model": ".*", "$backend": ".*"}
NUM_REQUESTS = 12


@pytest.mark.skipif(PROMTOOL is None, reason=f"no promtool; {WHERE}")
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yaml"),
        ("test", "rules", "alerts.test.yaml"),
        ("check", "config", "prometheus.yaml"),
    ],
    ids=" ".join,
)
async def test_promtool_accepts(arguments: tuple[str, ...]) -> None:
    """Every rule parses, and fires in its test."""
    assert PROMTOOL is not None
    process = await asyncio.create_subprocess_exec(
        *(PROMTOOL, *arguments),
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http

    async def is_ready(self) -> bool:
        try:
            async with self._http.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        params = {"query": expression}
        async with self._http.get(f"{self._url}/api/v1/query", params=params) as found:
            answer = await found.json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def until(self, expression: str) -> None:
        """Wait until an expression has samples."""
        async with asyncio.timeout(30):
            while True:
                if await self.query(expression):
                    return
                await asyncio.sleep(0.1)


@asynccontextmanager
async def scraping(target: str, folder: Path) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes *target* often."""
    config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "alerts.yaml")]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    child = Child("prometheus", folder / "prometheus.log", 60)
    command = (
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    async with aiohttp.ClientSession() as http:
        prometheus = Prometheus(f"http://127.0.0.1:{port}", http)
        try:
            await child.start(command)
            await child.ready(prometheus.is_ready)
            yield prometheus
        finally:
            await child.stop()


async def load(proxy: Served) -> None:
    """Send streams that repeat their prompt, so that all classes have counts."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    for number in range(NUM_REQUESTS):
        text = f"Tell me about pages. {number % 3} " * 8
        body = {"model": "tiny", "prompt": text, "max_tokens": 6, **usage}
        assert (await proxy.request(post(body, "/v1/completions"))).status == 200


@pytest.mark.skipif(PROMETHEUS is None, reason=f"no prometheus; {WHERE}")
async def test_every_panel_has_data_under_load(stage: Stage, tmp_path: Path) -> None:
    """The dashboard's queries find samples; none of the rules is broken."""
    events = f"tcp://*:{free_port()}"
    async with AsyncExitStack() as stack:
        run = run_engine("--num-blocks", "96", "--port", "0", "--kv-events", events)
        engine = await (await stack.enter_async_context(run)).until_ready()
        backend = {"name": "a", "url": engine.url, "engine": "embedded"}
        proxy = await (await stage.spawn(backends=[backend])).ready(1)
        host, port = proxy.address("admin")
        scraped = scraping(f"{host}:{port}", tmp_path)
        prometheus = await stack.enter_async_context(scraped)
        await prometheus.until("warmroute_backend_up == 1")
        await load(proxy)
        first = f"sum(warmroute_requests_total) >= {NUM_REQUESTS}"
        await prometheus.until(first)
        await load(proxy)
        await prometheus.until(f"sum(warmroute_requests_total) >= {2 * NUM_REQUESTS}")
        empty = [
            (panel["title"], target["expr"])
            for panel in BOARD["panels"]
            for target in panel.get("targets", ())
            if not _numbers(await prometheus.query(target["expr"]))
        ]
        assert empty == []
        assert await prometheus.query('ALERTS{alertstate="firing"}') == []


def _numbers(samples: list[dict[str, Any]]) -> list[float]:
    """Return the samples that are numbers: no rate of nothing, no share of none."""
    values = [float(sample["value"][1]) for sample in samples]
    return [value for value in values if value == value]
