"""The certificate authority of an installation: makes itself, and the certificates of its parts.

Keys are of the curve P-256, which every TLS library has. A part's certificate serves both sides of
a connection, because a data node is both; a client's serves the client's side only.

Concurrency: values only.
"""

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rezone.wire.transport.identity import CLIENT_ROLES, Identity, Role
from rezone.wire.transport.tls import TlsFiles

AUTHORITY_LIFETIME = timedelta(days=3650)
LIFETIME = timedelta(days=90)
CLOCK_SKEW = timedelta(minutes=5)
_RENEW_AT = 2 / 3

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
"""The keys that a certificate may be of: what the TLS library of gRPC takes."""


@dataclasses.dataclass(frozen=True)
class Authority:
    """A certificate that signs others, and its key, both in PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def create(
        cls, now: datetime, lifetime: timedelta = AUTHORITY_LIFETIME, name: str = "rezone"
    ) -> Self:
        """Return a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            certificate_builder(own, own, key.public_key(), now, lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(certificate_pem(certificate), key_pem(key))

    def issue(self, identity: Identity, now: datetime, lifetime: timedelta = LIFETIME) -> TlsFiles:
        """Return a certificate with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self.certify(identity, key.public_key(), now, lifetime)
        return TlsFiles.parse(self.certificate, certificate, key_pem(key))

    def certify(
        self, identity: Identity, public_key: PublicKey, now: datetime, lifetime: timedelta
    ) -> bytes:
        """Return a certificate in PEM for a key that somebody else keeps."""
        signer = serialization.load_pem_private_key(self.key, password=None)
        if not isinstance(signer, ec.EllipticCurvePrivateKey):
            raise TypeError("the authority's key is none of this program's")
        own = x509.load_pem_x509_certificate(self.certificate)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role not in CLIENT_ROLES:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        certificate = (
            certificate_builder(x509.Name([]), own.subject, public_key, now, lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
            # Critical: without a subject it is all that says whose certificate this is.
            .add_extension(x509.SubjectAlternativeName(_names(identity)), critical=True)
            .sign(signer, hashes.SHA256())
        )
        return certificate_pem(certificate)


def renew_at(files: TlsFiles) -> datetime:
    """Return when two thirds of a certificate's life are over."""
    return files.not_before + (files.not_after - files.not_before) * _RENEW_AT


def is_issued_by(files: TlsFiles, authority: Authority) -> bool:
    """Return whether this authority signed a certificate."""
    leaf = x509.load_pem_x509_certificate(files.certificate)
    try:
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(identity: Identity) -> Sequence[x509.GeneralName]:
    # A data node's clients verify a DNS name, and the first name alone says who it is.
    if identity.role is Role.DATA_NODE:
        return [x509.DNSName(host) for host in identity.hosts]
    return [x509.UniformResourceIdentifier(identity.uri)]


def certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    now: datetime,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    """Return the beginning of any certificate; it is good a little before `now`."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    """Return a private key in PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
