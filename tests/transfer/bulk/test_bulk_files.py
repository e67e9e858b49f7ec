"""What files of bulk jobs may have, and what is said of what they may not; without a zone."""

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rezone.transfer.bulk import sources
from rezone.transfer.bulk.directory import split_name
from rezone.transfer.bulk.exact import exact
from rezone.transfer.bulk.fitting import fitting
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import InvalidRowError

TEXT = pa.schema([("id", pa.string()), ("text", pa.string())])


def read(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows of a CSV file, each with its number."""
    source = sources.source_of(str(path), "csv", TEXT)
    found = []
    for unit in source.units:
        for first, batch in source.reader.read(unit, TEXT):
            found += list(enumerate(batch.to_pylist(), first))
    return found


def test_values_of_csv_may_have_line_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of several lines would end the load, or become several rows, by where it lies."""
    monkeypatch.setattr(sources, "CSV_BLOCK_BYTES", 60)
    rows = [{"id": str(n), "text": f"a {n}\nb\n\nc"} for n in range(40)]
    path = tmp_path / "x.csv"
    path.write_text(
        "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows), newline=""
    )
    assert read(path) == list(enumerate(rows, 1))


@pytest.mark.parametrize("bad", [b"1,secret,3\n", b"1,\xff\xfe\n"])
def test_what_is_no_csv_ends_the_load_and_tells_no_values(
    bad: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows behind a line that cannot be read would be missing, and nobody would know."""
    monkeypatch.setattr(sources, "CSV_BLOCK_BYTES", 60)
    path = tmp_path / "x.csv"
    path.write_bytes(b"id,text\n" + b"1,x\n" * 100 + bad)
    with pytest.raises(ValueError, match=r"x\.csv is no CSV file of UTF-8 text: ") as raised:
        read(path)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("uri", "folder", "name"),
    [
        ("s3://b/a/x.json?endpoint_override=h:9/y", "s3://b/a?endpoint_override=h:9/y", "x.json"),
        ("s3://b/x.json", "s3://b", "x.json"),
        ("/a/what?/x.json", "/a/what?", "x.json"),
        ("/x.json", "/", "x.json"),
    ],
)
def test_what_a_uri_says_of_its_store_stays(uri: str, folder: str, name: str) -> None:
    """Digests would be looked for at Amazon's store in place of one's own."""
    assert split_name(uri) == (folder, name)


NOON = dt.datetime(2026, 11, 25, 12)  # noqa: DTZ001 - the zone's times have no zone
NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "kind", "wanted", "fits"),
    [
        ([0.5, None, NAN], pa.float64(), pa.float32(), True),
        ([0.5, 0.1], pa.float64(), pa.float32(), False),
        ([1e300], pa.float64(), pa.float32(), False),
        ([0, 1, None], pa.int64(), pa.bool_(), True),
        ([0, 2], pa.int64(), pa.bool_(), False),
        ([decimal.Decimal("0.25")], pa.decimal128(20, 3), pa.float64(), True),
        ([decimal.Decimal(2**53 + 1)], pa.decimal128(20, 0), pa.float64(), False),
        ([NOON], pa.timestamp("us"), pa.date32(), False),
        ([NOON.replace(hour=0)], pa.timestamp("us"), pa.date32(), True),
        ([7, None], pa.int32(), pa.int64(), True),
        (["0.1"], pa.string(), pa.float32(), True),
        ([None], pa.null(), pa.float32(), True),
        ([0.1], pa.dictionary(pa.int8(), pa.float64()), pa.float32(), False),
    ],
)
def test_values_of_files_do_not_change(values: Any, kind: Any, wanted: Any, fits: bool) -> None:
    """A load would write other numbers than the file has, and a verification not see it."""
    batch = pa.record_batch([pa.array(values, kind)], names=["x"])
    schema = pa.schema([("x", wanted)])
    if fits:
        assert exact(batch, schema).schema == schema
        return
    with pytest.raises(InvalidRowError, match="'x' is "):
        exact(batch, schema)


def test_rows_that_do_not_fit_are_told_without_their_values() -> None:
    """Whoever may see a SparkApplication would read rows in its annotations."""
    columns = (Column("id", ColumnType.INT32), Column("ratio", ColumnType.FLOAT32))
    codec = RowCodec(TableSchema(columns=columns, primary_key=("id",)))
    batch = pa.record_batch({"id": [1, 1 << 40, 3, None], "ratio": [0.5, 0.5, 0.1, 0.5]})
    told: dict[int, str] = {}
    found = list(fitting(codec, batch, 1, told.__setitem__))
    assert sum(each.num_rows for each in found) == 1
    assert told == {
        2: "column 'id' is int64 and cannot be cast to the zone's int32",
        3: "column 'ratio' is double and has values that the zone's float cannot have",
        4: "column 'id' is null, but is not nullable",
    }
