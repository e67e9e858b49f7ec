"""Which certificates a data node takes at all: those whose first name gRPC cannot mistake.

gRPC tells a Flight server the text of a caller's first alternative name without its kind, and the
common name where there is none. So `rezone://operator` could be a DNS name, an e-mail address or a
common name. What a caller's certificate may have beside its URI is therefore said to the TLS
library, by constraints on names (RFC 5280, 4.2.1.10) in what it trusts: host names below `svc`, no
e-mail address, no subject. An authority's certificate has no such constraints, and nobody has to
sign it again for them: of what is trusted only name and key count, so a copy with constraints
verifies the same certificates but for their names.

An authority may sign by an intermediate, which has a subject. One that stands in `ca.crt`, or
behind this node's own certificate, is trusted by itself.
"""

from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from rezone.wire.transport.tls import HOSTS_BELOW, UNREADABLE_CERTIFICATE, TlsFiles, TlsFilesError

_PERMITTED: Final[tuple[x509.GeneralName, ...]] = (
    x509.DNSName(HOSTS_BELOW),
    x509.RFC822Name("nobody@rezone.invalid"),
)
# Every subject that has anything in it.
_EXCLUDED: Final = x509.DirectoryName(x509.Name([]))
_OWN_EXTENSIONS = (x509.NameConstraints, x509.AuthorityKeyIdentifier)


def constrained(files: TlsFiles) -> bytes:
    """Return what a data node is to trust in place of `files.authority`, in PEM.

    Raises TlsFilesError for an authority of which no copy can be made.
    """
    trusted = x509.load_pem_x509_certificates(files.authority)
    for above in reversed(x509.load_pem_x509_certificates(files.certificate)[1:]):
        if any(_signed_by(above, each) for each in trusted):
            trusted.append(above)
    # Nobody looks at the signature of what is trusted; the format wants one.
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        copies = [_copy(each).sign(key, hashes.SHA256()) for each in dict.fromkeys(trusted)]
    except UNREADABLE_CERTIFICATE as error:
        raise TlsFilesError(f"the authority cannot be used by a data node: {error}") from error
    return b"".join(each.public_bytes(Encoding.PEM) for each in copies)


def _copy(authority: x509.Certificate) -> x509.CertificateBuilder:
    """Return an authority as one that nobody is above of, with constraints on names."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(authority.subject)
        .issuer_name(authority.subject)
        .public_key(authority.public_key())
        .serial_number(authority.serial_number)
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_after_utc)
        .add_extension(_constraints(authority), critical=True)
    )
    for each in authority.extensions:
        if not isinstance(each.value, _OWN_EXTENSIONS):
            builder = builder.add_extension(each.value, each.critical)
    return builder


def _constraints(authority: x509.Certificate) -> x509.NameConstraints:
    """Return the constraints of a copy: those that the authority has, and this module's."""
    permitted: list[x509.GeneralName] = []
    excluded: list[x509.GeneralName] = [_EXCLUDED]
    for each in authority.extensions:
        if isinstance(each.value, x509.NameConstraints):
            permitted += each.value.permitted_subtrees or ()
            excluded += each.value.excluded_subtrees or ()
    # What is permitted adds up: `svc` would permit more than narrower host names do.
    kinds = {type(each) for each in permitted}
    permitted += [each for each in _PERMITTED if type(each) not in kinds]
    return x509.NameConstraints(permitted, list(dict.fromkeys(excluded)))


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
