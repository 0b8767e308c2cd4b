"""The parts as the application composes them, in this process."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
import yaml
from conformance.rig import Rig, StartRig, answer_ok, chat, post

from warmroute.policies.errors import ConfigError
from warmroute.proxy.app import App
from warmroute.proxy.config import ConfigSource, TLSConfig, load_config
from warmroute.proxy.process import raise_file_limit, tune_collector

CHAT = post(chat())


def rewrite(rig: Rig, **changes: Any) -> None:
    """Change settings in the file that the rig was started from."""
    source = rig.app.config._source
    assert source is not None
    assert source.path is not None
    settings = yaml.safe_load(source.path.read_text())
    source.path.write_text(yaml.safe_dump({**settings, **changes}))


async def test_what_was_found_out_survives_new_health_settings(
    start_rig: StartRig,
) -> None:
    """An open breaker stays open; only its bounds are new."""
    rig = await start_rig(answer_ok, answer_ok)
    backend = rig.app.fleet.backends["b0"]
    for _ in range(5):
        rig.app.fleet.failed(backend, "test")
    assert backend.breaker.state == "open"
    health = {"interval_s": 30, "breaker": {"failures": 2, "open_s": 60}}
    rewrite(rig, health=health)
    await rig.app.reloader.reload()
    assert rig.app.fleet.backends["b0"] is backend
    assert repr(backend.breaker) == "<Breaker open [failures: 5/2]>"
    other = rig.app.fleet.backends["b1"].breaker
    other.fail(now=0.0)
    assert other.is_tripping()


async def test_nothing_is_learned_before_a_backend_has_taught(
    start_rig: StartRig,
) -> None:
    """Assumed speeds are not shown as learned ones; then each one's own is."""
    rig = await start_rig(answer_ok, answer_ok)
    app = rig.app
    backends = app.fleet.backends
    assert backends["b0"].learned == backends["b1"].learned == (None, None)
    reservation = app.load.reserve(app.fleet.backends["b0"].candidate, 500, 500, 100.0)
    reservation.first_token(100.1)
    assert backends["b0"].learned[0] is not None
    assert backends["b0"].learned[1] is None
    reservation.release(101.1, output_tokens=51)
    assert backends["b0"].learned[1] == pytest.approx(0.02, rel=0.01)
    assert backends["b1"].learned[0] is None


async def test_the_same_file_changes_nothing(start_rig: StartRig) -> None:
    """Policy and backends are the same objects after a reload without a change."""
    rig = await start_rig(answer_ok)
    policy, backends = rig.app.router.policy, dict(rig.app.fleet.backends)
    await rig.app.reloader.reload()
    assert rig.app.router.policy is policy
    assert rig.app.fleet.backends == backends
    assert repr(rig.app.reloader) == "<Reloader good>"


async def test_a_crash_while_reloading_is_logged_and_ends_nothing(
    start_rig: StartRig,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A reload by signal that meets a bug leaves the process serving."""
    rig = await start_rig(answer_ok)

    def crash(config: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rig.app.port, "configure", crash)
    rig.app.reloader.request()
    await rig.until(lambda: not rig.app.reloader.status.is_good, "seen as failed")
    assert "reload_failed" in caplog.messages
    assert (await rig.request(CHAT)).status == 200


async def test_a_missing_file_is_one_being_replaced(
    start_rig: StartRig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The watch waits for it to come back, and then takes it over."""
    monkeypatch.setattr("warmroute.proxy.reload.WATCH_S", 0.005)
    rig = await start_rig(answer_ok, reload={"watch": True})
    source = rig.app.config._source
    assert source is not None
    assert source.path is not None
    watching = asyncio.create_task(rig.app.reloader.watch())
    away = source.path.rename(tmp_path / "away.yaml")
    asked: list[object] = []
    modified = type(source).modified

    def count(self: ConfigSource) -> tuple[int, int] | None:
        asked.append(self)
        return modified(self)

    monkeypatch.setattr(ConfigSource, "modified", count)
    await rig.until(lambda: len(asked) > 2, "looked at while away")
    assert rig.app.reloader.status.is_good
    settings = yaml.safe_load(away.read_text())
    away.write_text(yaml.safe_dump({**settings, "policy": "round_robin"}))
    away.rename(source.path)
    await rig.until(lambda: rig.app.router.policy.name == "round_robin", "reloaded")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_model_is_found_by_its_quoted_name(start_rig: StartRig) -> None:
    """Client libraries quote the slash of `org/model`."""
    rig = await start_rig(answer_ok)
    rig.engines[0].models[:] = ["org/model"]
    rewrite(rig, backends=[{"url": rig.engines[0].url, "engine": "openai"}])
    await rig.app.reloader.reload()
    await rig.all_up()
    for path in ("/v1/models/org%2Fmodel", "/v1/models/org/model"):
        reply = await rig.request(f"GET {path} HTTP/1.1\r\nHost: p\r\n\r\n".encode())
        assert reply.json()["id"] == "org/model"


async def test_a_start_that_fails_leaves_no_listener(tmp_path: Path) -> None:
    """A missing certificate is a configuration error, found before listening."""
    path = tmp_path / "config.yaml"
    path.write_text("backends: [http://127.0.0.1:1]\nlisten: 127.0.0.1:0\nadmin: off\n")
    app = App(load_config(path, {}), lambda: load_config(path, {}))
    key = tmp_path / "key.pem"
    key.write_text("no key")
    tls = {"certificate": str(key), "key": str(key)}
    app.config = app.config.model_copy(update={"tls": _tls(tls)})
    with pytest.raises(ConfigError, match="tls: cannot use"):
        await app.start()
    assert app.listening is None
    await app.close()


def _tls(section: dict[str, str]) -> Any:
    return TLSConfig.model_construct(None, **section)


def test_what_exists_is_left_to_no_collector() -> None:
    """Objects of the start are frozen; later ones are collected as before."""
    before = gc.get_threshold()
    try:
        tune_collector()
        assert gc.get_freeze_count() > 1000
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_collection_walks_few_objects_however_many_are_kept() -> None:
    """Each object that stays is walked a few thousand at a time, not all at once."""
    before, kept, walked = gc.get_threshold(), [], []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            young = range(info["generation"] + 1)
            walked.append(sum(len(gc.get_objects(generation=one)) for one in young))

    try:
        tune_collector()
        gc.callbacks.append(note)
        kept.extend([] for _ in range(150_000))
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.set_threshold(*before)
    assert len(walked) >= 50
    assert max(walked) < 35_000


def test_a_low_file_limit_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the hard limit or the kernel refuses becomes a warning with the need."""
    given: list[tuple[int, int]] = []

    def refuse(which: int, limits: tuple[int, int]) -> None:
        given.append(limits)
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 1024))
    monkeypatch.setattr("resource.setrlimit", lambda which, both: given.append(both))
    raise_file_limit(50)
    assert given == [(356, 1024)]
    assert not caplog.records
    raise_file_limit(1000)
    assert given[-1] == (1024, 1024)
    monkeypatch.setattr("resource.setrlimit", refuse)
    raise_file_limit(1000)
    told = [(one.__dict__["allowed"], one.__dict__["needed"]) for one in caplog.records]
    assert told == [(1024, 2256), (256, 2256)]
