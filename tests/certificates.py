"""Self-signed certificates for 127.0.0.1, made anew by each test."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate:
    """A certificate and its key in two files; each write makes another one."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / f"{name}.pem"
        self.key_path = directory / f"{name}.key"
        self.name = name
        self.write()

    @property
    def files(self) -> dict[str, str]:
        """The `tls` section that names the files."""
        return {"certificate": str(self.path), "key": str(self.key_path)}

    def write(self) -> None:
        """Make a new key and certificate, over those before."""
        key = ec.generate_private_key(ec.SECP256R1())
        self.key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        certificate = _sign(key, self.name)
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self) -> ssl.SSLContext:
        """Make the context of a server that shows it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path, self.key_path)
        return context

    def client(self) -> ssl.SSLContext:
        """Make the context of a client that trusts it and nothing else."""
        return ssl.create_default_context(cafile=str(self.path))


def _sign(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
