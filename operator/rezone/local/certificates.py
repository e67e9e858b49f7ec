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

from rezone.local.processes import write_atomically

_CA_DAYS = 3650
_LEAF_DAYS = 1825
_CLOCK_SKEW = dt.timedelta(minutes=5)


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
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(x509.Name(attributes), self._certificate.subject, key.public_key(), _LEAF_DAYS)
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
        write_atomically(key_path, _pem(key))
        certificate = builder.sign(self._key, hashes.SHA256())
        write_atomically(certificate_path, _pem_certificate(certificate), 0o644)
        return certificate_path, key_path

    def _create(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rezone-local-ca")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(name, name, key.public_key(), _CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        write_atomically(self._key_path, _pem(key))
        write_atomically(self.certificate_path, _pem_certificate(certificate), 0o644)


def service_account_key(directory: Path) -> Path:
    """Return the key that signs service account tokens, made on first use."""
    path = directory / "service-accounts.key"
    if not path.exists():
        write_atomically(path, _pem(rsa.generate_private_key(public_exponent=65537, key_size=2048)))
    return path


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _pem_certificate(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
