"""A role is a URI: a real data node takes no other kind of name for one, whoever signed it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from besieged_node import Besieged, besieged_node
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyarrow import flight
from secure_cluster import NAME, Pki, now, of_zone

from rezone.kube.tls.authority import certificate_builder, certificate_pem, key_pem
from rezone.wire import messages
from rezone.wire.messages import RoutesRequest
from rezone.wire.transport.identity import Identity, Role

pytestmark = [pytest.mark.slow, pytest.mark.proves("TR-03")]

OPERATOR = Identity(Role.OPERATOR).uri
WRITER = of_zone(Role.WRITER).uri
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    """One node for all tests of this module: none of them changes anything."""
    with besieged_node(tmp_path_factory.mktemp("names")) as found:
        yield found


def common(name: str, organization: str = "") -> x509.Name:
    """Return a subject."""
    parts = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, name)]
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in parts if text])


def signed(
    pki: Pki, *names: x509.GeneralName, subject: x509.Name | None = None
) -> tuple[bytes, bytes]:
    """Return what a careless authority signs: any names."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.load_pem_x509_certificate(pki.authority.certificate)
    signer = serialization.load_pem_private_key(pki.authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = certificate_builder(
        x509.Name([]) if subject is None else subject, own.subject, key.public_key(), now(), DAY
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not subject)
    return certificate_pem(builder.sign(signer, hashes.SHA256())), key_pem(key)


def ask(besieged: Besieged, certificate: bytes, key: bytes) -> None:
    """Ask for routes, which every role may, with Arrow's own client."""
    client = flight.connect(
        f"grpc+tls://{besieged.node.address}",
        tls_root_certs=besieged.c.pki.trusted,
        cert_chain=certificate,
        private_key=key,
        override_hostname=NAME,
    )
    action = flight.Action(RoutesRequest.__name__, messages.encode(RoutesRequest()))
    with client:
        list(client.do_action(action, options=flight.FlightCallOptions(timeout=30)))


@pytest.mark.parametrize("text", [OPERATOR, WRITER])
@pytest.mark.parametrize("kind", ["dns", "email", "common", "second", "other"])
def test_a_role_by_another_kind_of_name_is_refused(
    besieged: Besieged, kind: str, text: str
) -> None:
    """Who may have a DNS name signed, or an e-mail address, would control every data node."""
    pki = besieged.c.pki
    dns = x509.DNSName._init_without_validation(text)
    forged = {
        "dns": lambda: signed(pki, dns),
        "email": lambda: signed(pki, x509.RFC822Name._init_without_validation(text)),
        "common": lambda: signed(pki, subject=common(text)),
        "second": lambda: signed(pki, subject=common(text, "shop")),
        "other": lambda: signed(pki, dns, x509.UniformResourceIdentifier("rezone://nobody")),
    }
    with pytest.raises(flight.FlightUnavailableError):
        ask(besieged, *forged[kind]())


def test_the_uri_is_let_in(besieged: Besieged) -> None:
    """The tests above would prove nothing."""
    for text in (OPERATOR, WRITER):
        ask(besieged, *signed(besieged.c.pki, x509.UniformResourceIdentifier(text)))


def test_a_host_name_is_no_role(besieged: Besieged) -> None:
    """A server's certificate of the same authority would be good for something."""
    certificate, key = signed(besieged.c.pki, x509.DNSName("web.shop.svc.svc"))
    with pytest.raises(flight.FlightError, match="names no role"):
        ask(besieged, certificate, key)
