"""A running process takes over a changed file, all of it or nothing."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.rig import chat, post
from integration import served
from integration.scripts import HeldStream, answer_ok, read_until
from integration.served import Served, Stage, entry

stage = served.stage

CHAT = post(chat())


async def sighup(proxy: Served) -> None:
    """Send SIGHUP and wait until the file is taken over."""
    before = proxy.count("reloaded")
    proxy.signal(signal.SIGHUP)
    await proxy.logged("reloaded", before + 1)


async def states(proxy: Served) -> dict[str, str]:
    _, answer = await proxy.admin("/api/backends")
    return {one["name"]: one["state"] for one in answer["backends"]}


async def metric(proxy: Served, name: str) -> float:
    _, text = await proxy.admin("/metrics")
    line = next(one for one in text.splitlines() if one.startswith(f"{name} "))
    return float(line.split()[1])


class TestBackends:
    async def test_come_and_go_and_running_streams_stay(self, stage: Stage) -> None:
        """A stream on a removed backend ends well; new requests go to the new one."""
        script = HeldStream()
        old, new = await stage.engine(script), await stage.engine(answer_ok)
        proxy = await stage.serve(old)
        client = await proxy.connect()
        await client.send(post(chat(stream=True)))
        await read_until(client, b"first")
        proxy.write(backends=[entry("new", new)])
        await sighup(proxy)
        await proxy.logged("backend_up", backend="new")
        assert await states(proxy) == {"new": "up"}
        assert (await proxy.request(CHAT)).status == 200
        assert len(new.requests) == 1
        script.released.set()
        rest = await read_until(client, b"0\r\n\r\n")
        assert b"last" in rest
        assert b"[DONE]" in rest

    async def test_unchanged_ones_stay_as_they_are(self, stage: Stage) -> None:
        """Neither probed anew nor forgotten: what was learned of them holds."""
        kept, more = await stage.engine(answer_ok), await stage.engine(answer_ok)
        proxy = await stage.serve(kept)
        body = {"model": "m", "prompt": [7] * 64}
        assert (await proxy.request(post(body, "/v1/completions"))).status == 200
        proxy.write(backends=[entry("b0", kept), entry("b1", more)])
        await sighup(proxy)
        await proxy.logged("backend_up", backend="b1")
        assert proxy.count("backend_up", backend="b0") == 1
        _, state = await proxy.admin("/api/state")
        blocks = {one["name"]: one["view"]["blocks"] for one in state["backends"]}
        assert blocks == {"b0": 4, "b1": 0}
        assert state["tokens"]["prompt"] == 9

    async def test_changed_ones_are_replaced_without_a_gap(self, stage: Stage) -> None:
        """No request fails while the only backend gets a key, again and again."""
        engine = await stage.engine(answer_ok)
        proxy = await stage.serve(engine)
        done = asyncio.Event()

        async def ask() -> list[int]:
            client, statuses = await proxy.connect(), []
            while not done.is_set():
                await client.send(CHAT)
                statuses.append((await client.receive()).status)
            return statuses

        asking = asyncio.create_task(ask())
        for at in range(5):
            proxy.write(backends=[entry("b0", engine, api_key=f"key-{at}")])
            await sighup(proxy)
        done.set()
        assert set(await asking) == {200}
        assert (await proxy.request(CHAT)).status == 200
        assert engine.requests[-1].values("authorization") == ["Bearer key-4"]

    async def test_a_bad_one_changes_nothing(self, stage: Stage) -> None:
        """An unreadable CA is found before the first backend is touched."""
        engine = await stage.engine(answer_ok)
        proxy = await stage.serve(engine)
        (proxy.path.parent / "ca.pem").write_text("no certificate")
        bad = {"name": "z", "url": "https://127.0.0.1:1", "tls": {"ca": "ca.pem"}}
        proxy.write(backends=[entry("other", engine), bad], policy="round_robin")
        proxy.signal(signal.SIGHUP)
        await proxy.logged("reload_refused")
        assert await states(proxy) == {"b0": "up"}
        assert (await proxy.admin("/api/state"))[1]["policy"] == "least_requests"


class TestSettings:
    async def test_policy_limits_and_index_apply(self, stage: Stage) -> None:
        """What a request meets is what the file says now."""
        proxy = await stage.serve(await stage.engine(answer_ok))
        large = post(chat("x" * 2000))
        assert (await proxy.request(large)).status == 200
        proxy.write(
            policy={"name": "expected_ttft", "stall_weight": 0.1},
            limits={"body_bytes": 1024},
            index={"max_bytes": 2**20},
            log={"level": "debug"},
        )
        await sighup(proxy)
        assert (await proxy.request(large)).status == 413
        assert (await proxy.request(CHAT)).status == 200
        await proxy.logged("request_done")
        _, state = await proxy.admin("/api/state")
        assert state["policy"] == "expected_ttft"
        assert state["index"]["cap_bytes"] == 2**20
        changes = (await proxy.logged("reloaded"))["changes"]
        assert "limits.body_bytes: 67108864 -> 1024" in changes
        assert "policy.name" in changes

    async def test_health_settings_reach_running_probes(self, stage: Stage) -> None:
        """A probe that would come in an hour comes now, and failures count anew."""
        engine = await stage.engine(answer_ok)
        slow = {"interval_s": 3600, "timeout_s": 1, "failures": 50}
        proxy = await stage.serve(engine, health=slow)
        engine.healthy = False
        proxy.write(health={"interval_s": 0.05, "timeout_s": 1, "failures": 2})
        await sighup(proxy)
        await proxy.logged("backend_down", backend="b0")
        refused = await proxy.request(CHAT)
        assert refused.status == 503
        assert refused.value("retry-after") == "1"

    async def test_a_broken_file_keeps_the_old_configuration(
        self, stage: Stage
    ) -> None:
        """The metric says so, the log has every error, and the next good file heals."""
        engine = await stage.engine(answer_ok)
        proxy = await stage.serve(engine)
        good = "warmroute_config_last_reload_successful"
        stamp = "warmroute_config_last_reload_success_timestamp_seconds"
        assert await metric(proxy, good) == 1
        first = await metric(proxy, stamp)
        assert first > 0
        proxy.path.write_text("backends: [http://h:1]\nlisten: [\npolicy: 3\n")
        proxy.signal(signal.SIGHUP)
        line = await proxy.logged("reload_refused", level="error")
        assert f"{proxy.path}:" in line["error"]
        assert await metric(proxy, good) == 0
        assert await metric(proxy, stamp) == first
        assert (await proxy.request(CHAT)).status == 200
        proxy.write()
        await sighup(proxy)
        assert await metric(proxy, good) == 1
        assert await metric(proxy, stamp) > first

    @pytest.mark.parametrize("key", ["listen", "admin", "admin_token"])
    async def test_listeners_need_a_restart(self, stage: Stage, key: str) -> None:
        """The refusal names the key, and nothing else of that file applies."""
        engine = await stage.engine(answer_ok)
        proxy = await stage.serve(engine)
        proxy.write(**{key: "127.0.0.1:1"}, policy="round_robin")
        status, answer = await proxy.admin("/api/reload", "POST")
        assert status == 400
        assert answer["error"]["code"] == "config_invalid"
        expected = f"{key}: cannot change while running; restart"
        assert answer["error"]["message"].startswith(expected)
        assert (await proxy.admin("/api/state"))[1]["policy"] == "least_requests"


class TestDoors:
    async def test_the_api_answers_when_it_is_done(self, stage: Stage) -> None:
        """200 once in force; many at once run one after the other."""
        engines = [await stage.engine(answer_ok) for _ in range(4)]
        proxy = await stage.serve(engines[0])
        proxy.write(backends=[entry(f"n{at}", one) for at, one in enumerate(engines)])
        asked = [proxy.admin("/api/reload", "POST") for _ in range(4)]
        assert await asyncio.gather(*asked) == [(200, {"reloaded": True})] * 4
        assert list(await states(proxy)) == ["n0", "n1", "n2", "n3"]

    async def test_a_mounted_config_map_is_watched(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Kubernetes swaps a symlink of the directory; no signal comes."""
        engine = await stage.engine(answer_ok)
        path = _config_map(tmp_path / "mount")
        proxy = await stage.spawn(engine, path=path, reload={"watch": True})
        await proxy.ready(1)
        _swap(path.parent, "v2", {**proxy.settings, "policy": "round_robin"})
        changes = (await proxy.logged("reloaded"))["changes"]
        assert changes == "policy.name: 'least_requests' -> 'round_robin'"
        _swap(path.parent, "v3", {"policy": "no such policy"})
        await proxy.logged("reload_refused")
        assert (await proxy.admin("/api/state"))[1]["policy"] == "round_robin"


def _config_map(mount: Path) -> Path:
    """Lay out a directory as the kubelet mounts a ConfigMap."""
    (mount / "v1").mkdir(parents=True)
    (mount / "..data").symlink_to("v1")
    (mount / "v1" / "config.yaml").touch()
    path = mount / "config.yaml"
    path.symlink_to("..data/config.yaml")
    return path


def _swap(mount: Path, version: str, settings: dict[str, Any]) -> None:
    (mount / version).mkdir()
    (mount / version / "config.yaml").write_text(yaml.safe_dump(settings))
    (mount / "..data_tmp").symlink_to(version)
    os.replace(mount / "..data_tmp", mount / "..data")
