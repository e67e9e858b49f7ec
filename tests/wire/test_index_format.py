"""The bytes of index keys: their order is that of the values, and bounds cut where they should."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rezone.wire.codec.indexes import index_codec, index_codecs
from rezone.wire.codec.rows import RowCodec, arrow_schema_of
from rezone.wire.codec.schema import Column, ColumnType, Index, RowLimits, TableSchema
from rezone.wire.errors import InvalidRowError, UnknownIndexError

TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64, nullable=False),
        Column("owner", ColumnType.STRING),
        Column("city", ColumnType.BINARY),
        Column("age", ColumnType.INT16),
        Column("score", ColumnType.FLOAT64),
    ),
    primary_key=("id",),
    indexes=(Index("by_owner", ("owner", "age")), Index("by_city", ("city", "id"))),
)
SCHEMA = arrow_schema_of(TABLE)
OWNERS = st.none() | st.text(st.sampled_from("ab\x00\x01\xff"), max_size=4)
AGES = st.none() | st.integers(-3, 3) | st.sampled_from([-(1 << 15), (1 << 15) - 1, 255, 256])


Row = tuple[str | None, int | None]


def keys(rows: list[Row]) -> list[bytes]:
    """Return the keys of rows in the first index."""
    codec = index_codecs(TABLE)[0]
    arrays = {
        "owner": pa.array([owner for owner, _ in rows], pa.string()),
        "age": pa.array([age for _, age in rows], pa.int16()),
    }
    encoded: list[bytes] = codec.encode(arrays, len(rows)).to_pylist()
    return encoded


def order(row: Row) -> tuple[bool, bytes, bool, int]:
    """Return what rows are to be ordered by: nulls first."""
    owner, age = row
    return (owner is not None, (owner or "").encode(), age is not None, age or 0)


@given(rows=st.lists(st.tuples(OWNERS, AGES), max_size=12))
def test_keys_stand_in_the_order_of_the_values(rows: list[Row]) -> None:
    """A range would miss rows or have others, and a page would begin at the wrong place."""
    encoded = keys(rows)
    assert [row for _, row in sorted(zip(encoded, rows, strict=True), key=lambda p: p[0])] == [
        row for _, row in sorted(zip(encoded, rows, strict=True), key=lambda p: order(p[1]))
    ]
    assert len(set(encoded)) == len(set(rows))


@given(rows=st.lists(st.tuples(OWNERS, AGES), max_size=12), low=OWNERS, high=OWNERS, age=AGES)
def test_bounds_are_inclusive_and_may_be_shorter(
    rows: list[Row], low: str | None, high: str | None, age: int | None
) -> None:
    """An equality would miss its own rows, or a short bound would cut among equal ones."""
    codec = index_codecs(TABLE)[0]
    encoded = keys(rows)

    def inside(bound: tuple[object, ...], other: tuple[object, ...]) -> list[Row]:
        start, end = codec.range_of(bound, other)
        found = [row for key, row in zip(encoded, rows, strict=True) if start <= key + b"id" < end]
        return sorted(found, key=order)

    assert inside((), ()) == sorted(rows, key=order)
    assert inside((low,), (low,)) == sorted([r for r in rows if r[0] == low], key=order)
    assert inside((low, age), (low, age)) == sorted([r for r in rows if r == (low, age)], key=order)
    between = [r for r in rows if order((low, None))[:2] <= order(r)[:2] <= order((high, None))[:2]]
    assert inside((low,), (high,)) == sorted(between, key=order)


def test_bounds_that_do_not_fit_are_refused() -> None:
    """A wrong type or one value too many would find nothing and say nothing."""
    codec = index_codec(TABLE, "by_owner")
    with pytest.raises(ValueError, match="3 values for the 2 columns"):
        codec.range_of(("a", 1, 2), ())
    with pytest.raises(ValueError, match="column 'age'"):
        codec.range_of(("a", "old"), ())
    with pytest.raises(UnknownIndexError, match="no index 'by_name'; its indexes: by_owner"):
        index_codec(TABLE, "by_name")
    with pytest.raises(UnknownIndexError, match="none"):
        index_codec(TableSchema(), "by_name")


def test_a_row_whose_entry_would_be_too_large_is_refused() -> None:
    """One long text would make entries that no engine likes, and slow all lookups around it."""
    codec = RowCodec(TABLE, RowLimits(key_bytes_max=64))
    row = {"id": 1, "owner": "o" * 50, "city": b"c" * 100, "age": 1, "score": 1.0}
    with pytest.raises(InvalidRowError, match=r"entry in index 'by_city'.*'city'"):
        codec.check(pa.RecordBatch.from_pylist([row], schema=SCHEMA), delete=False)
    row["city"] = b"c"
    codec.check(pa.RecordBatch.from_pylist([row], schema=SCHEMA), delete=False)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (Index("x", ("nobody",)), "not a column"),
        (Index("x", ("score",)), "cannot be float64"),
        (Index("x", ("age", "age")), "each once"),
        (Index("x", ()), "at least one"),
        (Index("by_owner", ("age",)), "same name"),
    ],
)
def test_indexes_that_make_no_sense_are_refused(index: Index, message: str) -> None:
    """A node would open a zone whose index it cannot keep."""
    table = TableSchema(TABLE.columns, TABLE.primary_key, (TABLE.indexes[0], index))
    with pytest.raises(ValueError, match=message):
        RowCodec(table)


def test_columns_are_decoded_alone() -> None:
    """The indexer would decode whole rows, or take one column's bytes for another's."""
    codec = RowCodec(TABLE)
    rows = [
        {
            "id": i,
            "owner": None if i % 3 == 0 else f"o{i}",
            "city": b"c%d" % i,
            "age": i,
            "score": i / 2,
        }
        for i in range(10)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    names = frozenset({"id", "owner", "age"})
    found = codec.decode_columns(codec.encode_keys(batch), codec.encode_values(batch), names)
    assert set(found) == names
    for name in names:
        assert found[name].equals(batch.column(name))
