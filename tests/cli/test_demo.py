"""The demo's own parts: a demo that cannot fail would prove nothing."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from rezone.cli.demo.gaps import LeaderMove, WriteAck, gap_of
from rezone.cli.demo.ledger import Ledger
from rezone.cli.demo.table import (
    WRITE_COLUMN,
    UnusableInputError,
    generated_table,
    table_of_file,
)
from rezone.cli.main import main
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import ColumnType

MOVE = LeaderMove(name="m", partition=1, source=0, target=2, seen_from=10.0, seen_until=11.0)


def acks(old: list[float], new: list[float]) -> list[WriteAck]:
    """Return what the old and the new leader acknowledged."""
    return [WriteAck(at, 3) for at in old] + [WriteAck(at, 4) for at in new]


def test_the_gap_of_a_move_lies_between_the_two_leaders() -> None:
    """A pause for another reason would be taken for the handover, or the handover be missed."""
    gap = gap_of(MOVE, acks([9.9, 10.0, 10.1, 10.6], [10.8, 10.9, 11.0, 20.0]))

    assert gap is not None
    assert gap.handover_ms == pytest.approx(200)
    assert gap.longest_ms == pytest.approx(500)
    assert gap.usual_ms == pytest.approx(100)


def test_a_pause_that_begins_before_the_move_is_seen_counts() -> None:
    """The watch is late by a moment: a gap that ends inside the move would be cut off."""
    gap = gap_of(MOVE, acks([9.5], [10.5, 10.6]))

    assert gap is not None
    assert gap.handover_ms == pytest.approx(1000)


def test_a_move_without_writes_on_both_sides_has_no_gap() -> None:
    """A move nobody wrote during would be printed as a gap of nothing."""
    assert gap_of(MOVE, acks([1.0, 2.0], [])) is None
    assert gap_of(MOVE, acks([10.1, 10.2], [])) is None


def test_the_ledger_tells_promised_from_possible() -> None:
    """A write without an answer would be demanded, or one with an answer forgiven."""
    ledger = Ledger()
    ledger.sent({1: 1, 2: 1})
    ledger.acknowledged({1: 1, 2: 1})
    ledger.sent({1: 2})
    ledger.unknown({1: 2})
    book = ledger.book()

    assert book.acknowledged == {1: 1, 2: 1}
    assert book.possible == {1: 2, 2: 1}
    assert (book.rows_acknowledged, book.rows_unknown) == (2, 1)
    assert ledger.promised([1, 3]) == {1: 1}


def test_rows_of_the_writers_come_back_with_their_counts() -> None:
    """The proof reads the count of writes from the row: a wrong column would prove nothing."""
    table = generated_table(10)
    codec = RowCodec(table.schema)
    batch = table.batch({5: 7, 6: 8})
    codec.check(batch, delete=False)
    back = codec.decode(codec.encode_keys(batch), codec.encode_values(batch))

    assert table.writes_of(pa.Table.from_batches([back])) == {5: 7, 6: 8}


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_file_becomes_a_zone_with_a_column_for_the_writers(tmp_path: Path, suffix: str) -> None:
    """A user's own file could not be loaded, or its rows would be taken for the writers'."""
    source = pa.table({"code": ["a", "b", "b"], "amount": [1.5, None, 2.0]})
    path = tmp_path / f"input{suffix}"
    if suffix == ".csv":
        pyarrow.csv.write_csv(source, path)
    else:
        pq.write_table(source, path)
    staging = tmp_path / "staged.parquet"
    table = table_of_file(path, None, staging)

    assert table.rows == 2
    assert table.schema.primary_key == ("code",)
    assert [c.type for c in table.schema.columns] == [
        ColumnType.STRING,
        ColumnType.FLOAT64,
        ColumnType.INT64,
    ]
    staged = pq.read_table(staging)
    assert staged.column(WRITE_COLUMN).null_count == 3
    RowCodec(table.schema).check(table.batch({1: 1}), delete=False)


@pytest.mark.parametrize(
    ("columns", "key", "says"),
    [
        ({"x": [1.5]}, None, "choose a key"),
        ({"x": [1, None]}, None, "has nulls"),
        ({"x": [1]}, "y", "has no column 'y'"),
        ({"x": [1], "y": [[1, 2]]}, None, "drop it"),
    ],
)
def test_an_unusable_file_is_refused_with_what_to_do(
    tmp_path: Path, columns: dict[str, list[object]], key: str | None, says: str
) -> None:
    """The demo would fail in the middle of the load, after minutes."""
    path = tmp_path / "input.parquet"
    pq.write_table(pa.table(columns), path)

    with pytest.raises(UnusableInputError, match=says):
        table_of_file(path, key, tmp_path / "staged.parquet")


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    """A text file given as input would end in a stack trace."""
    path = tmp_path / "input.parquet"
    path.write_text("hello")

    with pytest.raises(UnusableInputError, match="no readable"):
        table_of_file(path, None, tmp_path / "staged.parquet")


def test_the_command_lists_its_subcommands_without_importing_them() -> None:
    """A data node would need Kopf and Spark only to print its help."""
    result = CliRunner().invoke(main, ["--help"])

    assert result.exit_code == 0
    for name in ("operator", "data-node", "local", "demo", "map", "progress"):
        assert name in result.output
