"""What the operator and the command read of objects, of the API server, and of data nodes' pods."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from node_parsers import FILES

from hostile_bytes import Parser
from rezone.cli.login import LoginError, certificate_in
from rezone.domain.observed.maintenance import until
from rezone.domain.routing import topology_text
from rezone.domain.routing.route_shards import decode_record, encode_record
from rezone.kube.api.connection import RefusedError, UnansweredError, _refused, parsed
from rezone.kube.api.errors import InvalidWriteError
from rezone.kube.jobs.bulk_jobs import said_in
from rezone.kube.jobs.loads import load_of
from rezone.kube.tls.certificates import issuer_of
from rezone.kube.tls.client_certificates import UnusableRequestError, parse
from rezone.wire.messages import LeaderAndIsr
from rezone.wire.messages.loads import ClientLoad, RequestLoad
from rezone.wire.transport.identity import Identity, Role

RECORD = LeaderAndIsr(leader=1, leader_epoch=2, isr=(1, 2), coordinator_epoch=3, replicas=(1, 2))
NONE = RequestLoad(ok=(0, 0))
LOAD = ClientLoad(process_id="a", seconds=1.0, bounds_micros=(1,), reads=NONE, writes=NONE)
DEEP = b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
"""Of a field that nobody knows any depth is read over, by calls within calls."""


def text_of(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return what reads bytes as the text of an object's field, which is UTF-8."""
    return lambda data: read(data.decode(errors="replace"))


def request_of() -> bytes:
    """Return a good request for a certificate, as DER."""
    uri = x509.UniformResourceIdentifier(Identity(Role.WRITER, "shop", "orders").uri)
    asked = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    named = asked.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    key = ec.generate_private_key(ec.SECP256R1())
    return named.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


REQUEST = request_of()
OF_VERSION_1 = REQUEST.replace(bytes.fromhex("0201003000"), bytes.fromhex("0201013000"))
"""There is version 0 alone."""


def read_request(data: bytes) -> None:
    """Read a request for a certificate: whoever may ask has written it."""
    lines = base64.encodebytes(data).decode()
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}-----END CERTIFICATE REQUEST-----\n"
    parse({"request": base64.b64encode(pem.encode()).decode()})


def read_secret(data: bytes) -> None:
    """Read the Secret of an authority."""
    files = {"ca.crt": FILES.authority, "tls.key": FILES.key, "tls.crt": FILES.certificate}
    texts = {name: base64.b64encode(content).decode() for name, content in files.items()}
    texts["tls.crt"] = data.decode(errors="replace")
    issuer_of({"metadata": {"name": "a"}, "data": texts})


def read_refusal(data: bytes) -> None:
    """Read why the API server, or what stands before it, refuses a request."""
    answer: Any = SimpleNamespace(headers={}, status=500)
    assert isinstance(_refused(answer, data), RefusedError)


def read_signed(text: str) -> None:
    """Read what a CertificateSigningRequest is answered by."""
    certificate_in({"certificate": text})


def read_until(text: str) -> None:
    """Read until when an annotation asks for maintenance."""
    until(text, datetime(2026, 1, 1, tzinfo=UTC))


VALUE = (ValueError,)
PARSERS = {
    "route records": Parser(
        text_of(decode_record), (encode_record(RECORD).encode(),), VALUE, (DEEP,)
    ),
    "topologies": Parser(text_of(topology_text.parse), (b"1,2;2,3;3,1", b"0;1;2"), VALUE),
    "rates of clients": Parser(load_of, (msgspec.json.encode(LOAD),), VALUE, (DEEP,)),
    "what drivers say": Parser(
        text_of(said_in), (b'{"job": "load"}',), (), (b"[" * 50_000 + b"]" * 50_000,)
    ),
    "requests for certificates": Parser(
        read_request, (REQUEST,), (UnusableRequestError,), (OF_VERSION_1,)
    ),
    "secrets of authorities": Parser(
        read_secret, (base64.b64encode(FILES.certificate),), (InvalidWriteError,)
    ),
    "answers of the API server": Parser(parsed, (b'{"kind": "Pod"}',), (UnansweredError,), (DEEP,)),
    "refusals of the API server": Parser(
        read_refusal, (json.dumps({"reason": "a", "message": "b"}).encode(),), (), (DEEP,)
    ),
    "signed certificates": Parser(
        text_of(read_signed), (base64.b64encode(FILES.certificate),), (LoginError,), (b"a",)
    ),
    "ends of maintenance": Parser(
        text_of(read_until), (b"1h30m", b"2026-01-01T01:00:00+00:00"), VALUE
    ),
}
