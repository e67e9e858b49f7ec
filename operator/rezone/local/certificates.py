"""A certificate authority for one cluster and the certificates its parts know each other by."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rezone.kube.tls.authority import Authority, certificate_builder, certificate_pem, key_pem
from rezone.local.processes import write_atomically

_LEAF_LIFETIME = dt.timedelta(days=1825)


class CertificateAuthority:
    """Keeps `ca.crt` and `ca.key` in a directory and issues leaf certificates beside them.

    What exists is kept: a restart of the cluster must not invalidate anybody's kubeconfig.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.certificate_path = directory / "ca.crt"
        self._key_path = directory / "ca.key"
        if not self.certificate_path.exists():
            self._create()
        self._certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())
        key = serialization.load_pem_private_key(self._key_path.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{self._key_path} is not a key of this program")
        self._key = key

    def issue(
        self, name: str, *, common_name: str, organization: str = "", hosts: Iterable[str] = ()
    ) -> tuple[Path, Path]:
        """Return the paths of a certificate and its key, for client and server use."""
        certificate_path = self._directory / f"{name}.crt"
        key_path = self._directory / f"{name}.key"
        if certificate_path.exists() and key_path.exists():
            return certificate_path, key_path
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        subject, issuer = x509.Name(attributes), self._certificate.subject
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            certificate_builder(subject, issuer, key.public_key(), _now(), _LEAF_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        write_atomically(key_path, key_pem(key).decode())
        certificate = builder.sign(self._key, hashes.SHA256())
        write_atomically(certificate_path, certificate_pem(certificate).decode(), 0o644)
        return certificate_path, key_path

    def _create(self) -> None:
        made = Authority.create(_now(), name="rezone-local-ca")
        write_atomically(self._key_path, made.key.decode())
        write_atomically(self.certificate_path, made.certificate.decode(), 0o644)


def service_account_key(directory: Path) -> Path:
    """Return the key that signs service account tokens, made on first use."""
    path = directory / "service-accounts.key"
    if not path.exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        write_atomically(path, key_pem(key).decode())
    return path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
