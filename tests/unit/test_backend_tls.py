"""Probes over TLS, against a fake engine with a certificate of its own."""

from pathlib import Path

from certificates import Certificate
from unit import fleet_rig
from unit.fake_engine import FakeEngine
from unit.fleet_rig import Make

make = fleet_rig.make


async def test_trusts_the_ca_given_anything_if_told_so_and_else_nobody(
    make: Make, tmp_path: Path
) -> None:
    certificate = Certificate(tmp_path, "engine")
    engine = await FakeEngine("vllm").start(certificate.server())
    assert engine.url.startswith("https://")
    rig = make(
        {"name": "given", "url": engine.url, "tls": {"ca": str(certificate.path)}},
        {"name": "blind", "url": engine.url, "tls": {"verify": False}},
        {"name": "strict", "url": engine.url},
    )
    await rig.until_up("given", "blind")
    await rig.until(lambda: rig["strict"].state == "down")
    assert rig.names() == ["given", "blind"]
    await rig.fleet.close()
    await engine.stop()
