"""What a write becomes before it is appended."""

from __future__ import annotations

import uuid

import pytest
from replica_cluster import batch_of, keys_in

from rezone.datanode.writing.owner import log_key
from rezone.datanode.writing.write import prepare
from rezone.storage.log.entry import OP_DELETE
from rezone.wire.codec import encoded_rows
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.codec.keyspace import range_of
from rezone.wire.codec.pieces import FEW_ROWS
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import ConflictError, InvalidRowError
from rezone.wire.messages import WriteRequest

CODEC = RowCodec(TableSchema())
WHOLE = range_of(0, 1)


@pytest.fixture(params=[FEW_ROWS, 0], ids=["few", "many"], autouse=True)
def _rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode by a loop, and by kernels as if there were many rows."""
    monkeypatch.setattr(encoded_rows, "FEW_ROWS", request.param)


def request(*, delete: bool = False, writer: str = uuid.UUID(int=1).hex) -> WriteRequest:
    """Return a request."""
    return WriteRequest(opaque=1, partition=0, producer_id=writer, sequence=1, delete=delete)


def body(pairs: list[tuple[bytes, bytes]]) -> memoryview:
    """Return rows, repeated keys allowed, as a request's body."""
    batch = batch_of({b"": b""}).slice(0, 0)
    columns = list(zip(*pairs, strict=True))
    batch = batch.from_arrays(list(map(list, columns)), schema=batch.schema) if pairs else batch
    return memoryview(to_ipc(batch))


def test_of_rows_with_the_same_key_the_last_stays_in_its_place() -> None:
    """Two versions of one row would have the same time, and either could win."""
    prepared = prepare(request(), body([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]), CODEC, WHOLE)
    keys = keys_of(prepared.rows.column(0)).tolist()
    assert keys == [b"b", b"a"]
    decoded = CODEC.decode(keys_of(prepared.rows.column(0)), prepared.rows.column(2))
    assert decoded.column("value").to_pylist() == [b"2", b"3"]


def test_a_delete_has_keys_only() -> None:
    """A deleted row would keep a value."""
    keys = batch_of({b"a": b""}).select(["key"])
    prepared = prepare(request(delete=True), memoryview(to_ipc(keys)), CODEC, WHOLE)
    assert prepared.rows.column(1).to_pylist() == [OP_DELETE]
    assert prepared.rows.column(2).to_pylist() == [b""]


def test_nothing_and_foreign_keys_and_producers_without_a_uuid_are_refused() -> None:
    """An empty entry cannot be logged; a foreign key would never be found again."""
    with pytest.raises(InvalidRowError, match="no rows"):
        prepare(request(), body([]), CODEC, WHOLE)
    (foreign,) = keys_in(1, 2, 1)
    with pytest.raises(ConflictError, match="stale partition count"):
        prepare(request(), body([(foreign, b"")]), CODEC, range_of(0, 2))
    with pytest.raises(InvalidRowError, match="not a UUID"):
        log_key("producer_id", "me")
