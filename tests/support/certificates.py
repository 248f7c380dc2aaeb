"""Certificates for servers and clients of tests, as PEM files, by an authority that is made anew each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


@dataclass(frozen=True)
class Authority:
    """Signs what is for 127.0.0.1, or for a client of that name."""

    folder: Path
    name: str = "an authority of tests"
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @cached_property
    def certificate(self) -> Path:
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        return self._written(self.name, self._builder(self.name, self._key).add_extension(constraints, critical=True))

    def signed(self, name: str, password: str | None = None) -> tuple[Path, Path]:
        """Certificate and key (PKCS #8), which ``password`` encrypts."""
        key = ec.generate_private_key(ec.SECP256R1())
        place = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = self._written(name, self._builder(name, key).add_extension(place, critical=False))
        secret = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        path = certificate.with_suffix(".key")
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
        return certificate, path

    def _builder(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def _written(self, name: str, builder: x509.CertificateBuilder) -> Path:
        path = self.folder / f"{name}.pem"
        path.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))
        return path
