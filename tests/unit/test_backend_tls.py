"""Probes over TLS, against a fake engine with a certificate of its own."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.unit import fleet_rig
from tests.unit.fake_engine import FakeEngine
from tests.unit.fleet_rig import Make

make = fleet_rig.make


def _certificate(directory: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake engine")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = directory / "engine.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


async def test_trusts_the_ca_given_anything_if_told_so_and_else_nobody(
    make: Make, tmp_path: Path
) -> None:
    pem = _certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    engine = await FakeEngine("vllm").start(server)
    assert engine.url.startswith("https://")
    rig = make(
        {"name": "given", "url": engine.url, "tls": {"ca": str(pem)}},
        {"name": "blind", "url": engine.url, "tls": {"verify": False}},
        {"name": "strict", "url": engine.url},
    )
    await rig.until_up("given", "blind")
    await rig.until(lambda: rig["strict"].state == "down")
    assert rig.names() == ["given", "blind"]
    await rig.fleet.close()
    await engine.stop()
