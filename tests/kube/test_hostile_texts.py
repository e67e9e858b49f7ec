"""Texts of objects and files that others may write are refused by what reads them, not worse.

Each has one way to say so, a ValueError: whatever else came would end a pass of the operator, or a
job, without a word about whose fault it is.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import example, given

from hostile_bytes import fuzzed, hostile
from rezone.domain.routing import topology_text
from rezone.domain.routing.route_shards import decode_record, encode_record
from rezone.kube.client_certificates import UnusableRequestError, parse
from rezone.kube.loads import load_of
from rezone.transfer.options import decode_filter
from rezone.wire.codec.filters import FilterOp, FilterTerm
from rezone.wire.copying import backfill_plan, plan
from rezone.wire.copying.backfill_plan import BackfillPlan, BackfillRange
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.messages import LeaderAndIsr
from rezone.wire.messages.loads import ClientLoad, RequestLoad
from rezone.wire.transport.identity import Identity, Role

pytestmark = pytest.mark.proves("TR-03")

COPY = PartitionCopy(
    partition=1, source="a:1", source_id=1, targets=(CopyTarget(id=2, address="b:1"),), revision=4
)
MANY = [msgspec.structs.replace(COPY, partition=number) for number in range(100)]
BACKFILL = BackfillPlan(nodes={1: "a:1"}, ranges=(BackfillRange(5, 1),))
RECORD = LeaderAndIsr(leader=1, leader_epoch=2, isr=(1, 2), coordinator_epoch=3, replicas=(1, 2))
NONE = RequestLoad(ok=(0, 0))
LOAD = ClientLoad(process_id="a", seconds=1.0, bounds_micros=(1,), reads=NONE, writes=NONE)
TERM = FilterTerm(FilterOp.EQUAL, "id", (1,))
DEEP = b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
"""Of a field that nobody knows any depth is read over, by calls within calls."""


def text_of(data: bytes) -> str:
    """Return bytes as the text of a ConfigMap's key, which is UTF-8."""
    return data.decode(errors="replace")


def read_load(text: str) -> object:
    """Read what a data node's pod has answered."""
    return load_of(text.encode())


READERS: dict[Callable[[str], object], tuple[bytes, ...]] = {
    decode_record: (encode_record(RECORD).encode(),),
    topology_text.parse: (b"1,2;2,3;3,1", b"0;1;2"),
    plan.loads: (plan.dumps([COPY]).encode(), plan.dumps(MANY).encode()),
    backfill_plan.loads: (backfill_plan.dumps(BACKFILL).encode(),),
    decode_filter: (base64.b64encode(msgspec.msgpack.encode((TERM,))),),
    read_load: (msgspec.json.encode(LOAD),),
}


@pytest.mark.parametrize("read", READERS, ids=lambda read: f"{read.__module__}.{read.__name__}")
def test_texts(read: Callable[[str], object]) -> None:
    """Asserts that each reader takes a text or refuses it by ValueError."""

    @fuzzed
    @example(DEEP)
    @given(hostile(*READERS[read]))
    def refuse(data: bytes) -> None:
        with contextlib.suppress(ValueError):
            read(text_of(data))

    refuse()


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


@fuzzed
@example(OF_VERSION_1)
@given(hostile(REQUEST))
def test_certificate_requests(data: bytes) -> None:
    """Asserts that whatever is no request is refused: whoever may ask has written it."""
    lines = base64.encodebytes(data).decode()
    pem = f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}-----END CERTIFICATE REQUEST-----\n"
    with contextlib.suppress(UnusableRequestError):
        parse({"request": base64.b64encode(pem.encode()).decode()})
