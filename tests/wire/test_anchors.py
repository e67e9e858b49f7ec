"""What a data node trusts: the same authorities, for certificates with fewer kinds of names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID
from pyarrow import flight

from rezone.kube.tls.authority import Authority, certificate_builder, certificate_pem, key_pem
from rezone.wire.errors import ForbiddenError
from rezone.wire.transport.anchors import constrained
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import TlsFiles

pytestmark = pytest.mark.proves("TR-03")

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
NODE = Identity(Role.DATA_NODE, "shop", "accounts")
WRITER = Identity(Role.WRITER, "shop", "accounts")


class Names(flight.FlightServerBase):  # type: ignore[misc]
    """Says who has called."""

    def do_action(self, context: Any, action: Any) -> Iterator[flight.Result]:
        """Answer the caller's name."""
        del action
        yield flight.Result(context.peer_identity())


def asked(node: TlsFiles, caller: TlsFiles) -> str:
    """Return by what name a node knows a caller."""
    with (
        Names(
            "grpc+tls://127.0.0.1:0",
            tls_certificates=[(node.certificate, node.key)],
            verify_client=True,
            root_certificates=constrained(node),
        ) as server,
        flight.connect(
            f"grpc+tls://127.0.0.1:{server.port}",
            tls_root_certs=caller.authority,
            cert_chain=caller.certificate,
            private_key=caller.key,
            override_hostname=NODE.server_name,
        ) as client,
    ):
        options = flight.FlightCallOptions(timeout=30)
        (answer,) = client.do_action(flight.Action("who", b""), options=options)
        return bytes(answer.body).decode()


CA = x509.BasicConstraints(ca=True, path_length=None)


def signed(by: Authority | None, subject: str, *extensions: x509.ExtensionType) -> Authority:
    """Return a certificate with its key, whatever it is of; without `by` one that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else [])
    above = name if by is None else x509.load_pem_x509_certificate(by.certificate).subject
    builder = certificate_builder(name, above, key.public_key(), NOW, DAY)
    for each in extensions:
        builder = builder.add_extension(each, critical=True)
    signer = key if by is None else load_pem_private_key(by.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    return Authority(certificate_pem(builder.sign(signer, hashes.SHA256())), key_pem(key))


def named(by: Authority, trusted: bytes, *names: x509.GeneralName) -> TlsFiles:
    """Return a caller's files with these names."""
    made = signed(by, "", x509.SubjectAlternativeName(names))
    return TlsFiles.parse(trusted, made.certificate, made.key)


def test_callers_of_an_authority_between_are_let_in() -> None:
    """It has a subject, which no caller may have: the zone would be cut off from all of them."""
    root = signed(None, "root", CA)
    between = signed(root, "between", CA)

    def files(identity: Identity) -> TlsFiles:
        made = between.issue(identity, NOW)
        chain = made.certificate + between.certificate
        return TlsFiles.parse(root.certificate, chain, made.key)

    assert asked(files(NODE), files(WRITER)) == WRITER.uri


def test_what_an_authority_permits_is_not_widened() -> None:
    """An authority for `accounts.shop.svc` alone would be good for every Service."""
    constraints = x509.NameConstraints([x509.DNSName(NODE.server_name)], None)
    root = signed(None, "root", CA, constraints)
    node = named(root, root.certificate, x509.DNSName(NODE.server_name))
    uri = x509.UniformResourceIdentifier(WRITER.uri)
    assert asked(node, named(root, root.certificate, uri)) == WRITER.uri
    other = named(root, root.certificate, uri, x509.DNSName("orders.shop.svc"))
    with pytest.raises(flight.FlightUnavailableError):
        asked(node, other)


@pytest.mark.parametrize(
    ("subject", "names", "why"),
    [
        ("me", [x509.UniformResourceIdentifier(WRITER.uri)], "it has a subject"),
        ("", [], "it has no alternative name"),
        ("", [x509.RFC822Name("me@shop.example")], "it has an e-mail address"),
        ("", [x509.DNSName("shop.example")], "it has the host name shop.example"),
    ],
)
def test_a_caller_is_told_why_nobody_will_take_its_certificate(
    subject: str, names: list[x509.GeneralName], why: str
) -> None:
    """The handshake alone says no more than that the node has hung up."""
    root = signed(None, "root", CA)
    extensions = [x509.SubjectAlternativeName(names)] if names else []
    made = signed(root, subject, *extensions)
    files = TlsFiles.parse(root.certificate, made.certificate, made.key)
    with pytest.raises(ForbiddenError, match=why):
        files.require_valid(NOW)
