"""Filters: what they mean, and that no bytes of a client make a data node work without bound."""

import datetime as dt
import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from rezone.client import Filter, col
from rezone.wire import messages
from rezone.wire.codec.filter_plans import ids_that_pass, index_range
from rezone.wire.codec.filters import (
    DEPTH_MAX,
    FILTER_BYTES_MAX,
    TERMS_MAX,
    VALUES_MAX,
    FilterOp,
    FilterTerm,
    RowFilter,
)
from rezone.wire.codec.keyspace import hash_key, row_id
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.errors import InvalidFilterError
from rezone.wire.messages import SelectTicket

TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("part", ColumnType.STRING),
        *(Column(f"c_{each.name.lower()}", each) for each in ColumnType),
    ),
    primary_key=("id", "part"),
    indexes=(Index("by_text", ("c_string", "c_int32")), Index("by_date", ("c_date32",))),
)
CODEC = RowCodec(TABLE)
NAN = math.nan


def passing(rows: Filter, column: str, values: list[Any]) -> list[Any]:
    """Return the values of a column that pass."""
    schema = CODEC.arrow_schema
    array = pa.array(values, schema.field(column).type)
    mask = RowFilter(TABLE, rows.terms).mask({column: array})
    return list(array.filter(mask).to_pylist())


@pytest.mark.parametrize(
    ("rows", "column", "found"),
    [
        (col("c_int32") == 2, "c_int32", [2]),
        (col("c_int32") != 2, "c_int32", [1, 3]),
        ((col("c_int32") > 1) & (col("c_int32") <= 3), "c_int32", [2, 3]),
        ((col("c_int32") < 2) | (col("c_int32") >= 3), "c_int32", [1, 3]),
        (col("c_int32").is_in([1, 3, 9]), "c_int32", [1, 3]),
        (~col("c_int32").is_in([1]), "c_int32", [2, 3]),
        (~col("c_int32").is_in([1, None]), "c_int32", []),
        (col("c_int32").is_in([1, None]), "c_int32", [1]),
        (col("c_int32").is_in([]), "c_int32", []),
        (col("c_int32").is_null(), "c_int32", [None]),
        (~col("c_int32").is_null(), "c_int32", [1, 2, 3]),
    ],
)
def test_a_null_is_neither_equal_nor_unequal(rows: Filter, column: str, found: list[Any]) -> None:
    """Spark trusts the source: a row too many or too few here is a wrong result there."""
    assert passing(rows, column, [1, None, 2, 3]) == found


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (col("c_float64") > 1.0, [2.0, NAN]),
        (col("c_float64") < NAN, [1.0, 2.0]),
        (col("c_float64") <= NAN, [1.0, 2.0, NAN]),
        (col("c_float64") > NAN, []),
        (col("c_float64") == NAN, [NAN]),
        (col("c_float64") > math.inf, [NAN]),
        (col("c_float64") > -math.inf, [1.0, 2.0, NAN]),
        (col("c_float64").is_in([NAN, 2]), [2.0, NAN]),
        (~col("c_float64").is_in([NAN]), [1.0, 2.0]),
    ],
)
def test_nan_equals_itself_and_is_above_all(rows: Filter, found: list[float]) -> None:
    """Arrow says otherwise, Spark does not: rows with NaN would be lost by the push-down."""
    assert repr(passing(rows, "c_float64", [1.0, 2.0, None, NAN])) == repr(found)


def test_all_types_are_compared_by_their_own_values() -> None:
    """A date that is compared as a text, or a time in another unit, selects other rows."""
    day, time = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001
    assert passing(col("c_date32") >= day, "c_date32", [dt.date(2025, 1, 1), day]) == [day]
    assert passing(col("c_timestamp_us") == time, "c_timestamp_us", [time, None]) == [time]
    zoned = time.replace(tzinfo=dt.timezone(dt.timedelta(0)))
    assert passing(col("c_timestamp_us") == zoned, "c_timestamp_us", [time]) == [time]
    assert passing(col("c_bool") == True, "c_bool", [True, False, None]) == [True]  # noqa: E712
    texts = ["abc", "xbc", "", None]
    assert passing(col("c_string").starts_with("a"), "c_string", texts) == ["abc"]
    assert passing(col("c_string").ends_with("bc"), "c_string", texts) == ["abc", "xbc"]
    assert passing(~col("c_string").contains("x"), "c_string", texts) == ["abc", ""]
    assert passing(col("c_binary") > b"\x7f", "c_binary", [b"\x80", b"a"]) == [b"\x80"]
    assert passing(col("c_binary").contains(b"\0"), "c_binary", [b"a\0b", b"a"]) == [b"a\0b"]


def equal(column: str, *values: Any) -> FilterTerm:
    """Return a term as a client would send it."""
    return FilterTerm.of(FilterOp.IN, column, values)


AND, NOT = FilterTerm(FilterOp.AND), FilterTerm(FilterOp.NOT)


@pytest.mark.parametrize(
    "terms",
    [
        (AND,),
        (equal("id", 1), AND),
        (equal("id", 1), equal("id", 2)),
        (equal("none", 1),),
        (equal("id", "1"),),
        (FilterTerm(FilterOp.EQUAL, "id", (True,)),),
        (equal("id", 1.0),),
        (equal("c_int8", 128),),
        (equal("c_float32", 1e300),),
        (equal("c_bool", 1),),
        (equal("c_string", b"a"),),
        (FilterTerm(FilterOp.LESS, "c_bool", (True,)),),
        (FilterTerm(FilterOp.LESS, "id"),),
        (FilterTerm(FilterOp.LESS, "id", (1, 2)),),
        (FilterTerm(FilterOp.EQUAL, "id", (None,)),),
        (FilterTerm(FilterOp.IS_NULL, "id", (1,)),),
        (FilterTerm(FilterOp.CONTAINS, "id", (1,)),),
        (equal("c_float64", *map(float, range(65))),),
        (equal("c_string", "x" * (FILTER_BYTES_MAX + 1)),),
        (equal("id", 1), *(NOT,) * DEPTH_MAX),
        (*(equal("id", *range(VALUES_MAX)),) * 2, AND),
    ],
)
def test_what_is_no_filter_of_the_table_is_refused_before_it_is_evaluated(
    terms: tuple[FilterTerm, ...],
) -> None:
    """Any client sends any terms: what Arrow does with those that do not fit is its own affair."""
    with pytest.raises(InvalidFilterError):
        RowFilter(TABLE, terms)


def test_size_and_nesting_are_bounded_by_the_message_itself() -> None:
    """A decoder that follows a tree would go as deep as a client likes; this one is flat."""

    def decoded(terms: tuple[FilterTerm, ...]) -> messages.Message:
        return messages.decode(messages.encode(SelectTicket(partition=0, filter=terms)))

    most = (equal("id", 1),) * TERMS_MAX
    assert decoded(most) == SelectTicket(partition=0, filter=most)
    for terms in ((equal("id", 1),) * (TERMS_MAX + 1), (equal("id", *range(VALUES_MAX + 1)),)):
        with pytest.raises(msgspec.ValidationError):
            decoded(terms)
    many = col("id") == 0
    for n in range(50):  # one joint of many parts, however it was written
        many = many & (col("id") != n)
    assert len(RowFilter(TABLE, many.terms).conjuncts) == 51


def test_rows_that_may_pass_are_known_by_their_ids() -> None:
    """A partition that has them is left out, or all are asked for one row."""

    def found(rows: Filter) -> list[bytes] | None:
        return ids_that_pass(CODEC, RowFilter(TABLE, rows.terms))

    def of(number: int, part: str) -> bytes:
        row = pa.RecordBatch.from_pylist([{"id": number, "part": part}], schema=CODEC.key_schema)
        key = CODEC.encode_keys(row)[0].as_py()
        return row_id(hash_key(key), key)

    both = (col("id") == 7) & col("part").is_in(["a", "b", None])
    assert found(both) == sorted([of(7, "a"), of(7, "b")])
    assert found(both & (col("c_int8") > 3)) == sorted([of(7, "a"), of(7, "b")])
    assert found((col("id") == 7) & col("part").is_in([])) == []
    assert found(col("id") == 7) is None
    assert found(both | (col("c_int8") > 3)) is None
    assert found(~both) is None
    many = col("id").is_in(range(100)) & col("part").is_in(map(str, range(100)))
    assert found(many) is None


def test_an_index_serves_equality_beginnings_and_ranges_with_two_ends() -> None:
    """A range that misses an entry loses rows; one with an open end may be slower than a scan."""

    def chosen(rows: Filter) -> str | None:
        found = index_range(CODEC, RowFilter(TABLE, rows.terms))
        return found.name if found else None

    day = dt.date(2026, 1, 1)
    assert chosen(col("c_string") == "a") == "by_text"
    assert chosen((col("c_string") == "a") & (col("c_date32") == day)) in ("by_text", "by_date")
    assert (
        chosen((col("c_string") == "a") & (col("c_int32") == 2) & (col("c_date32") == day))
        == "by_text"
    )
    assert chosen(col("c_string").starts_with("a")) == "by_text"
    assert chosen((col("c_date32") > day) & (col("c_date32") < day)) == "by_date"
    assert chosen(col("c_date32") > day) is None
    assert chosen(col("c_int32") == 1) is None
    assert chosen((col("c_string") == "a") | (col("c_int32") == 1)) is None


def test_a_filter_is_written_as_people_write_it() -> None:
    """What a plan shows would mean another filter where brackets are missing."""
    rows = (col("id") == 1) & (col("part").is_in(range(12)) | ~col("c_string").starts_with("a"))
    texts = "(part IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...) OR NOT c_string STARTS WITH 'a')"
    assert str(rows) == f"(id = 1 AND {texts})"
    assert str(~(col("c_binary").is_null() | (col("c_float64") > math.inf))) == (
        "NOT (c_binary IS NULL OR c_float64 > 'inf')"
    )


def test_filters_are_joined_by_operators_alone() -> None:
    """`a and b` would silently be b, and `1 < col < 3` the second half."""
    with pytest.raises(TypeError, match="&"):
        assert col("id") == 1
    with pytest.raises(ValueError, match="object"):
        col("id").is_in([object()])
