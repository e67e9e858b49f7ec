"""The row format: round trips over all types, injective keys, refusals that say what to do."""

import datetime as dt
import struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rezone.wire.codec import bodies, keyspace, pieces, rows
from rezone.wire.codec.column_bytes import key_width
from rezone.wire.codec.encoded_rows import EncodedRows, FewRows, ManyRows, encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import KEY_TYPES, Column, ColumnType, Index, RowLimits, TableSchema
from rezone.wire.errors import CorruptionError, InvalidRowError

_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_VALUES: dict[ColumnType, Any] = {
    ColumnType.BOOL: st.booleans(),
    ColumnType.INT8: st.integers(-(2**7), 2**7 - 1),
    ColumnType.INT16: st.integers(-(2**15), 2**15 - 1),
    ColumnType.INT32: st.integers(-(2**31), 2**31 - 1),
    ColumnType.INT64: st.integers(-(2**63), 2**63 - 1),
    ColumnType.FLOAT32: st.floats(width=32, allow_nan=False),
    ColumnType.FLOAT64: st.floats(allow_nan=False),
    ColumnType.STRING: st.one_of(_TEXT, st.sampled_from(["", "\0", "a\0", "é\0é"])),
    ColumnType.BINARY: st.one_of(
        st.binary(max_size=12), st.sampled_from([b"", b"\0", b"\0\0\0\1"])
    ),
    ColumnType.DATE32: st.dates(),
    ColumnType.TIMESTAMP_US: st.datetimes(),
}
ALL_TYPES = TableSchema(
    columns=(Column("id", ColumnType.INT64), *(Column(f"c_{t.name}", t) for t in ColumnType)),
    primary_key=("id",),
)


@st.composite
def tables(draw: Any) -> TableSchema:
    """Draw any table: columns of any types, a primary key of some of them in any order."""
    types = draw(st.lists(st.sampled_from(list(ColumnType)), min_size=0, max_size=9))
    key_types = draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=4))
    columns = [Column(f"k{i}", t) for i, t in enumerate(key_types)]
    keys = [c.name for c in columns]
    columns += [Column(f"v{i}", t, nullable=draw(st.booleans())) for i, t in enumerate(types)]
    return TableSchema(
        columns=tuple(draw(st.permutations(columns))),
        primary_key=tuple(draw(st.permutations(keys))),
    )


@st.composite
def batches(draw: Any) -> tuple[RowCodec, Any]:
    """Draw a table's codec with a batch of it, often a slice of a longer batch."""
    codec = RowCodec(draw(tables()))
    count = draw(st.integers(0, 12))
    arrays = []
    for column, field in zip(codec.table.columns, codec.arrow_schema, strict=True):
        one = _VALUES[column.type]
        value = st.one_of(st.none(), one) if field.nullable else one
        arrays.append(pa.array(draw(st.lists(value, min_size=count, max_size=count)), field.type))
    batch = pa.RecordBatch.from_arrays(arrays, schema=codec.arrow_schema)
    start = draw(st.integers(0, count))
    return codec, batch.slice(start, draw(st.integers(0, count)))


def by_kernels(codec: RowCodec, keys: Any, values: Any) -> Any:
    """Decode as many rows would be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "FEW_ROWS", -1)
        return codec.decode(keys, values)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(batches())
def test_encode_then_decode_gives_the_same_batch(case: tuple[RowCodec, Any]) -> None:
    """A row that comes back changed is data loss: any type, null, empty, NUL byte or slice."""
    codec, batch = case
    codec.check(batch, delete=False)
    keys, values = codec.encode_keys(batch), codec.encode_values(batch)
    assert keys.null_count == values.null_count == 0
    back = codec.decode(keys, values)
    back.validate(full=True)
    assert back.equals(batch)
    assert by_kernels(codec, keys, values).equals(batch)
    assert codec.decode(keys.to_pylist(), values.to_pylist()).equals(batch)
    key_batch = batch.select(codec.key_schema.names)
    codec.check(key_batch, delete=True)
    assert codec.encode_keys(key_batch).equals(keys)
    names = codec.key_schema.names
    decoded = codec.decode_columns(keys, values, frozenset(names))
    assert [decoded[name] for name in names] == key_batch.columns


@settings(deadline=None, max_examples=80, derandomize=True)
@given(batches())
def test_slices_decode_by_themselves(case: tuple[RowCodec, Any]) -> None:
    """Scans hand in slices of arrays; wrong offsets there would mix the bytes of rows."""
    codec, batch = case
    keys, values = codec.encode_keys(batch), codec.encode_values(batch)
    half = batch.num_rows // 2
    for decode in (RowCodec.decode, by_kernels):
        assert decode(codec, keys.slice(half), values.slice(half)).equals(batch.slice(half))


def all_of(encoded: EncodedRows) -> tuple[Any, ...]:
    """Return all that is stored of a batch's rows, and what is asked about where they belong."""
    hashes = encoded.hashes()
    bounds = encoded.hash_bounds() if len(hashes) else None
    lists = hashes.tolist(), encoded.row_id_list()
    arrays = encoded.keys(), encoded.values(), encoded.row_ids()
    return arrays, lists, bounds, encoded.may_repeat(), keyspace.partitions_of(hashes, 7).tolist()


@settings(deadline=None, max_examples=40, derandomize=True)
@given(batches())
def test_few_rows_have_the_bytes_that_many_have(case: tuple[RowCodec, Any]) -> None:
    """A row written alone would be another row than the same one written among thousands."""
    codec, batch = case
    few, joined = all_of(FewRows(codec, batch)), all_of(ManyRows(codec, batch))
    with pytest.MonkeyPatch.context() as patch:
        for module in (pieces, keyspace):
            patch.setattr(module, "FEW_ROWS", -1)
        many = all_of(ManyRows(codec, batch))
    assert few == joined == many


def test_rows_with_the_same_key_are_told() -> None:
    """A log entry would have two versions of one row with one time; or none is looked for."""
    codec = RowCodec(TableSchema())
    for keys, repeats in (([b"a", b"b", b"a"], True), ([b"a", b"b"], False)):
        batch = pa.record_batch([keys, keys], schema=codec.arrow_schema)
        assert FewRows(codec, batch).may_repeat() is repeats
        assert ManyRows(codec, batch).may_repeat() is repeats


@pytest.mark.parametrize(("count", "way"), [(pieces.FEW_ROWS, FewRows), (33, ManyRows)])
def test_few_rows_go_through_the_loop(count: int, way: type) -> None:
    """A small write would cost the leader twice as much, or a large one a hundred times."""
    codec = RowCodec(TableSchema())
    batch = pa.record_batch([[b"k"] * count, [b""] * count], schema=codec.arrow_schema)
    assert type(encoded_rows(codec, batch)) is way


def test_what_stands_under_a_null_is_not_stored() -> None:
    """Equal rows would have unequal bytes, and replicas' digests would differ for no reason."""
    validity = pa.py_buffer(b"\1")
    number = pa.Array.from_buffers(pa.int64(), 2, [validity, pa.py_buffer(b"\7" * 16)])
    text = pa.Array.from_buffers(
        pa.string(), 2, [validity, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"xy")]
    )
    types = {"k": ColumnType.INT8, "n": ColumnType.INT64, "s": ColumnType.STRING}
    columns = tuple(Column(name, kind) for name, kind in types.items())
    codec = RowCodec(TableSchema(columns=columns, primary_key=("k",)))
    found = [pa.array([1, 1], pa.int8()), number, text]
    batch = pa.RecordBatch.from_arrays(found, schema=codec.arrow_schema)
    clean = pa.RecordBatch.from_pylist(batch.to_pylist(), schema=codec.arrow_schema)
    assert codec.value_bytes(batch) == codec.encode_values(clean).to_pylist()
    assert codec.encode_values(batch).to_pylist() == codec.encode_values(clean).to_pylist()


def test_a_row_without_a_key_is_refused_and_not_stumbled_over() -> None:
    """A client asks where rows belong before they are checked: it would raise a TypeError."""
    keys = pa.array([b"a", None], pa.binary())
    columns = (Column("a", ColumnType.BINARY), Column("b", ColumnType.STRING))
    codec = RowCodec(TableSchema(columns=columns, primary_key=("a", "b")))
    batch = pa.record_batch([keys, pa.array(["x", "y"])], names=["a", "b"])
    for encoded in (FewRows(codec, batch), ManyRows(codec, batch)):
        assert len(encoded.hashes()) == batch.num_rows
    with pytest.raises(InvalidRowError, match="null"):
        codec.check(batch, delete=False)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(batches())
def test_limits_hold_to_the_byte(case: tuple[RowCodec, Any]) -> None:
    """What is soon told to be small enough is not looked at row by row: none may slip through."""
    codec, batch = case
    names = [c.name for c in codec.table.columns if c.type in KEY_TYPES]
    table = msgspec.structs.replace(codec.table, indexes=(Index("all", tuple(names)),))
    keys = codec.row_sizes(batch.select(codec.key_schema.names), delete=True)
    both = codec.row_sizes(batch, delete=False)
    if not batch.num_rows:
        return
    assert not codec.surely_fits(batch, int(both.sum()) - 1, delete=False)
    [(_, columns)] = RowCodec(table)._indexes
    entries = codec._sizes(batch, columns, sum(key_width(c) for c in columns))
    for of, size, limit in (
        (codec.table, keys.max(), "key_bytes_max"),
        (codec.table, (both - keys).max(), "value_bytes_max"),
        (codec.table, both.sum(), "batch_bytes_max"),
        (table, max(keys.max(), entries.max()), "key_bytes_max"),
    ):
        RowCodec(of, RowLimits(**{limit: int(size)})).check(batch, delete=False)
        if not size:
            continue
        with pytest.raises(InvalidRowError, match=rf"limit is\s{size - 1}\b"):
            RowCodec(of, RowLimits(**{limit: int(size) - 1})).check(batch, delete=False)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.data())
def test_different_keys_have_different_encodings(data: Any) -> None:
    """Two keys with one encoding would be one row: the second write would eat the first."""
    codec = RowCodec(data.draw(tables()))
    row = st.tuples(*(_VALUES[c.type] for c in codec._keys))
    found = data.draw(st.lists(row, unique=True, min_size=2, max_size=12))
    batch = pa.RecordBatch.from_arrays(
        [pa.array([r[i] for r in found], f.type) for i, f in enumerate(codec.key_schema)],
        schema=codec.key_schema,
    )
    assert len(set(codec.encode_keys(batch).to_pylist())) == len(found)


def test_the_format_does_not_change() -> None:
    """The bytes are on disks: another encoding of the same row would not be found again."""
    table = TableSchema(
        columns=(
            Column("name", ColumnType.STRING),
            Column("id", ColumnType.INT32),
            Column("tag", ColumnType.BINARY),
            Column("amount", ColumnType.FLOAT64),
            Column("note", ColumnType.STRING),
            Column("ok", ColumnType.BOOL),
        ),
        primary_key=("name", "id", "tag"),
    )
    codec = RowCodec(table)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["ab"]),
            pa.array([-1], pa.int32()),
            pa.array([b"xyz"]),
            pa.array([1.0]),
            pa.array([None], pa.string()),
            pa.array([True]),
        ],
        schema=codec.arrow_schema,
    )
    assert codec.encode_keys(batch).to_pylist() == [b"\0\0\0\x02ab\x7f\xff\xff\xffxyz"]
    assert codec.encode_values(batch).to_pylist() == [
        b"\x02" + b"\0\0\0\0\0\0\xf0\x3f" + b"\x01" + b"\0\0\0\0",
    ]
    single = RowCodec(TableSchema())
    one = pa.RecordBatch.from_arrays(
        [pa.array([b"k\0"]), pa.array([b"v"])], schema=single.arrow_schema
    )
    assert single.encode_keys(one).to_pylist() == [b"k\0"]


def test_row_ids_and_hashes_are_those_of_the_keyspace() -> None:
    """Vectorised and single forms must agree, or a row is looked for in another partition."""
    found = [b"", b"a", b"a\0", bytes(300), *(i.to_bytes(8, "big") for i in range(50))]
    keys = pa.array(found, pa.binary())
    hashes = rows.hash_of(keys)
    assert hashes.tolist() == [keyspace.hash_key(k) for k in found]
    ids = rows.row_ids(keys, hashes)
    assert ids.to_pylist() == [keyspace.row_id(keyspace.hash_key(k), k) for k in found]
    assert rows.keys_of(ids).array().equals(keys)
    assert rows.hash_of(keys.slice(3, 5)).tolist() == hashes[3:8].tolist()
    assert rows.row_ids(keys.slice(3, 5), hashes[3:8]).equals(ids.slice(3, 5))


def _all_types_batch(codec: RowCodec) -> Any:
    values = {
        ColumnType.DATE32: dt.date(2026, 1, 2),
        ColumnType.TIMESTAMP_US: dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - the type has no zone
        ColumnType.STRING: "text",
        ColumnType.BINARY: b"bytes",
        ColumnType.BOOL: True,
    }
    return pa.RecordBatch.from_arrays(
        [
            pa.array([values.get(c.type, 1)] * 3, f.type)
            for c, f in zip(codec.table.columns, codec.arrow_schema, strict=True)
        ],
        schema=codec.arrow_schema,
    )


@pytest.mark.parametrize("shift", range(8))
def test_ipc_bodies_may_stand_anywhere_in_a_frame(shift: int) -> None:
    """A body follows a header of any length, so its buffers are not aligned."""
    codec = RowCodec(ALL_TYPES)
    batch = _all_types_batch(codec)
    body = memoryview(bytes(shift) + bodies.to_ipc(batch))[shift:]
    back = bodies.from_ipc(body, codec.arrow_schema)
    codec.check(back, delete=False)
    assert codec.decode(codec.encode_keys(back), codec.encode_values(back)).equals(batch)


def test_ipc_refuses_what_is_not_one_batch_of_the_schema() -> None:
    """A hostile or mistaken body must be the client's error, not a crash of the node."""
    codec = RowCodec(ALL_TYPES)
    batch = _all_types_batch(codec)
    body = bodies.to_ipc(batch)
    for bad in (b"", b"junk" * 10, body[: len(body) // 2], body[:-200] + bytes(200)[:0]):
        with pytest.raises(InvalidRowError):
            bodies.from_ipc(bad, codec.arrow_schema)
    head = batch.schema.serialize().to_pybytes()
    for nothing in (head, body[: len(head)] + body[-8:]):
        with pytest.raises(InvalidRowError, match="no record batch"):
            bodies.from_ipc(nothing, codec.arrow_schema)
    with pytest.raises(InvalidRowError, match="not an Arrow IPC stream"):
        bodies.from_ipc(head + body, codec.arrow_schema)
    with pytest.raises(InvalidRowError, match="columns"):
        bodies.from_ipc(body, codec.key_schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)
    with pytest.raises(InvalidRowError, match="more than one"):
        bodies.from_ipc(sink.getvalue().to_pybytes(), codec.arrow_schema)


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize("kind", [0, 2, 3, 9, 255])
def test_a_body_that_says_that_it_begins_with_no_schema_is_refused(kind: int) -> None:
    """Arrow takes any header for a schema, and does not verify one of a kind that it does not know.

    A data node ended by a segmentation fault, or took the body.
    """
    codec = RowCodec(ALL_TYPES)
    body = bytearray(bodies.to_ipc(pa.RecordBatch.from_pylist([], codec.arrow_schema)))
    place = 8 + struct.unpack_from("<I", body, 8)[0]
    fields = place - struct.unpack_from("<i", body, place)[0]
    body[place + struct.unpack_from("<H", body, fields + 6)[0]] = kind
    with pytest.raises(InvalidRowError, match="does not begin with a schema"):
        bodies.from_ipc(bytes(body), codec.arrow_schema)


def test_ipc_bodies_of_other_writers_are_read() -> None:
    """A client of another Arrow version describes the same schema with other bytes."""
    codec = RowCodec(ALL_TYPES)
    batch = _all_types_batch(codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata({"made": "elsewhere"})) as stream:
        stream.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    for one in (body, bodies.to_ipc(batch)[:-8]):
        back = bodies.from_ipc(one, codec.arrow_schema)
        assert back.equals(batch)


def _replace(batch: Any, name: str, array: Any) -> Any:
    return batch.set_column(batch.schema.get_field_index(name), name, array)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda b: b.select(b.schema.names[::-1]), r"select\("),
        (lambda b: b.select(b.schema.names[1:]), "has the columns"),
        (lambda b: _replace(b, "c_INT8", b["c_INT8"].cast("int64")), "'c_INT8' is int64"),
        (
            lambda b: _replace(b, "id", pa.array([1, None, 3], pa.int64())),
            "'id' is null in row 1",
        ),
        (
            lambda b: _replace(b, "c_STRING", pa.array(["", "", "x" * 101])),
            r"value of row 2 .* limit is 150 .*'c_STRING'",
        ),
        (
            lambda b: pa.RecordBatch.from_arrays(
                [pa.concat_arrays([c] * 4) for c in b.columns], schema=b.schema
            ),
            "12 rows, the limit is 10",
        ),
    ],
)
def test_check_says_what_is_wrong(change: Any, match: str) -> None:
    """A refusal without the column, row or limit leaves its reader nothing to do."""
    codec = RowCodec(ALL_TYPES, RowLimits(value_bytes_max=150, batch_rows_max=10))
    with pytest.raises(InvalidRowError, match=match):
        codec.check(change(_all_types_batch(codec)), delete=False)


def test_check_limits_keys_and_batches() -> None:
    """Limits hold for deletes too; an unbounded key would not fit the row id's length field."""
    codec = RowCodec(TableSchema(), RowLimits(key_bytes_max=4, batch_bytes_max=20))
    ok = pa.RecordBatch.from_arrays([pa.array([b"abcd"] * 5)], schema=codec.key_schema)
    codec.check(ok, delete=True)
    long = pa.RecordBatch.from_arrays([pa.array([b"a", b"abcde"])], schema=codec.key_schema)
    with pytest.raises(InvalidRowError, match=r"key of row 1 has 5 bytes .* 4 .*'key'") as caught:
        codec.check(long, delete=True)
    assert caught.value.details == {"column": "key", "row": 1, "limit": 4}
    many = pa.RecordBatch.from_arrays([pa.array([b"abcd"] * 6)], schema=codec.key_schema)
    with pytest.raises(InvalidRowError, match="24 bytes"):
        codec.check(many, delete=True)


def test_an_index_entry_may_be_longer_than_its_row() -> None:
    """It says how long a text is, which a key of one text does not: the limit would be passed."""
    table = TableSchema(
        columns=(Column("k", ColumnType.STRING), Column("v", ColumnType.BOOL)),
        primary_key=("k",),
        indexes=(Index("by_k", ("k",)),),
    )
    one = pa.RecordBatch.from_arrays([["abcd"], [True]], schema=RowCodec(table).arrow_schema)
    RowCodec(table, RowLimits(key_bytes_max=8)).check(one, delete=False)
    with pytest.raises(InvalidRowError, match="entry in index 'by_k' of row 0 has 8 bytes"):
        RowCodec(table, RowLimits(key_bytes_max=7)).check(one, delete=False)


def test_check_refuses_broken_arrow_data() -> None:
    """Offsets outside the buffer or bad UTF-8 would be read by C code without a check."""
    codec = RowCodec(
        TableSchema(
            columns=(Column("k", ColumnType.BINARY), Column("s", ColumnType.STRING)),
            primary_key=("k",),
        )
    )
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    batch = pa.RecordBatch.from_arrays([pa.array([b"k"]), bad], schema=codec.arrow_schema)
    with pytest.raises(InvalidRowError, match="not valid"):
        codec.check(batch, delete=False)


def test_decode_refuses_bytes_of_another_table() -> None:
    """Bytes of another schema must not become plausible rows."""
    codec = RowCodec(ALL_TYPES)
    batch = _all_types_batch(codec)
    keys, values = codec.encode_keys(batch).to_pylist(), codec.encode_values(batch).to_pylist()
    for bad_keys, bad_values in (
        ([k[:-1] for k in keys], values),
        ([k + b"x" for k in keys], values),
        (keys, [v[:-1] for v in values]),
        (keys, [v + b"x" for v in values]),
        (keys, [v[:5] for v in values]),
        (keys, [b""] * 3),
    ):
        for decode in (RowCodec.decode, by_kernels):
            with pytest.raises(CorruptionError):
                decode(codec, bad_keys, bad_values)


def test_few_rows_are_decoded_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point read would cost ten times as much: kernels are made for many rows."""
    codec = RowCodec(TableSchema())
    batch = pa.record_batch([[b"a", b"b"], [b"x", b""]], schema=codec.arrow_schema)
    keys, values = codec.encode_keys(batch), codec.encode_values(batch)
    monkeypatch.delattr(RowCodec, "_decode_values")

    assert codec.decode(keys, values).equals(batch)
    with pytest.raises(AttributeError):
        by_kernels(codec, keys, values)


@pytest.mark.parametrize(
    ("table", "limits"),
    [
        (TableSchema(columns=(Column("k", ColumnType.FLOAT64),), primary_key=("k",)), RowLimits()),
        (TableSchema(primary_key=("nope",)), RowLimits()),
        (TableSchema(primary_key=()), RowLimits()),
        (TableSchema(columns=(Column("key", ColumnType.BINARY),) * 2), RowLimits()),
        (TableSchema(), RowLimits(key_bytes_max=1 << 16)),
    ],
)
def test_tables_without_sense_are_refused(table: TableSchema, limits: RowLimits) -> None:
    """A bad schema must fail when it is set, not at the first row."""
    with pytest.raises(ValueError, match=r"\w"):
        RowCodec(table, limits)
