"""Selections at real data nodes: what leaves them, and that each row comes once."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Coordinator, cluster

from rezone.client import Filter, Selection, TableClient, col
from rezone.datanode.reading.select import select_batches
from rezone.datanode.service import server
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.errors import IndexNotBuiltError, InvalidFilterError, NotReadyError, RezoneError
from rezone.wire.messages import SelectTicket, ZoneConfig

TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("owner", ColumnType.STRING),
        Column("amount", ColumnType.INT32),
        Column("note", ColumnType.STRING),
    ),
    primary_key=("id",),
    indexes=(Index("by_owner", ("owner", "amount")),),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
ROWS = [
    {"id": n, "owner": f"o{n % 50}", "amount": n if n % 3 else None, "note": "x" * 20}
    for n in range(3000)
]
SETTINGS = msgspec.structs.replace(FAST, apply_interval_ms=10)


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Two nodes that lead a partition each, with the rows."""
    path = tmp_path_factory.mktemp("nodes")
    with cluster(path, 2, config=CONFIG, settings=SETTINGS) as coordinator:
        for partition in range(2):
            coordinator.create(partition, (partition, 1 - partition))
        with TableClient(list(coordinator.peers.values())) as table:
            table.write(ROWS)
        yield coordinator


@pytest.fixture
def table(c: Coordinator) -> Iterator[TableClient]:
    """Yield a client."""
    with TableClient(list(c.peers.values())) as client:
        yield client


class Seen:
    """The tickets that data nodes were asked by, and the rows that have left them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tickets: list[SelectTicket] = []
        self.rows = 0
        self.breaks: list[RezoneError] = []
        monkeypatch.setattr(server, "select_batches", self._select)

    def _select(
        self, partition: Any, indexes: Any, ticket: SelectTicket, codec: Any
    ) -> Iterator[Any]:
        self.tickets.append(ticket)
        for number, (batch, told) in enumerate(select_batches(partition, indexes, ticket, codec)):
            self.rows += batch.num_rows
            yield batch, told
            if number and self.breaks:
                raise self.breaks.pop()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Watch what leaves the data nodes."""
    return Seen(monkeypatch)


def ids(found: Any) -> list[int]:
    """Return the ids of a table, in order."""
    return sorted(found["id"].to_pylist())


@pytest.mark.proves("SP-02")
@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (col("amount") > 2900, lambda r: (r["amount"] or 0) > 2900),
        (
            col("amount").is_null() & (col("id") < 30),
            lambda r: r["amount"] is None and r["id"] < 30,
        ),
        (col("owner").is_in(["o1", "o7"]), lambda r: r["owner"] in ("o1", "o7")),
        (col("owner") == "o7", lambda r: r["owner"] == "o7"),
        (
            (col("owner") == "o7") & (col("amount") >= 100) & (col("amount") < 200),
            lambda r: r["owner"] == "o7" and 100 <= (r["amount"] or 0) < 200,
        ),
        (
            col("owner").starts_with("o4") & (col("id") > 9),
            lambda r: r["owner"][:2] == "o4" and r["id"] > 9,
        ),
        (col("id").is_in([5, 2999, 70_000]), lambda r: r["id"] in (5, 2999)),
        (
            (col("id") == 5) | (col("owner") == "o7"),
            lambda r: r["id"] == 5 or r["owner"] == "o7",
        ),
    ],
)
def test_no_row_leaves_a_data_node_that_does_not_pass(
    table: TableClient, seen: Seen, rows: Filter, wanted: Any
) -> None:
    """A filter that runs at the reader moves the whole table for a few rows."""
    found = table.scan(filter=rows, columns=["id"])
    assert found.schema.names == ["id"]
    assert ids(found) == [row["id"] for row in ROWS if wanted(row)]
    assert seen.rows == found.num_rows


@pytest.mark.proves("SP-02")
def test_keys_ask_their_partitions_alone_and_indexes_their_range(
    table: TableClient, seen: Seen
) -> None:
    """One row by its key would cost a read of every partition."""
    assert table.scan(filter=col("id") == 5).to_pylist() == [ROWS[5]]
    assert len(seen.tickets) == 1
    assert not seen.tickets[0].index
    assert table.scan(filter=col("id").is_in([])).num_rows == 0
    assert len(seen.tickets) == 1
    assert table.scan(filter=col("owner") == "o7", columns=["note"]).num_rows == 60
    assert [one.index for one in seen.tickets[1:]] == ["by_owner"] * 2


@pytest.mark.proves("SP-02")
def test_a_limit_ends_the_reading_at_the_data_node(table: TableClient, seen: Seen) -> None:
    """Ten rows of a table of terabytes would be its first partition."""
    assert table.scan(limit=10).num_rows == 10
    assert seen.rows == 10
    assert len(seen.tickets) == 1
    assert table.scan(limit=0).num_rows == 0
    assert table.scan(limit=5000, columns=["id"]).num_rows == 3000
    assert table.scan(filter=col("owner") == "o7", limit=7).num_rows == 7
    with pytest.raises(ValueError, match="-1"):
        table.scan(limit=-1)


@pytest.mark.long
@pytest.mark.parametrize(
    "rows", [col("owner") == "o7", col("amount") > 10, col("id").is_in(range(900))]
)
def test_a_selection_that_breaks_off_goes_on_without_a_row_twice(
    table: TableClient, seen: Seen, monkeypatch: pytest.MonkeyPatch, rows: Filter
) -> None:
    """The rows say no longer where they stood: columns of the key may be left out."""
    monkeypatch.setattr("rezone.datanode.reading.select._SLICE_ROWS", 100)
    monkeypatch.setattr("rezone.datanode.reading.select._INDEX_ROWS", 7)
    monkeypatch.setattr("rezone.datanode.reading.select._SLICE_BYTES", 1)
    whole = table.scan(filter=rows, columns=["amount", "owner"])
    asked = len(seen.tickets)
    seen.breaks = [NotReadyError("broken") for _ in range(6)]
    again = table.scan(filter=rows, columns=["amount", "owner"])
    assert not seen.breaks
    assert len(seen.tickets) > 2 * asked + 2
    assert again.equals(whole)
    at_most = table.scan(filter=rows, limit=20)
    assert len(set(at_most["id"].to_pylist())) == 20


def test_an_index_that_is_not_built_is_passed_over(
    table: TableClient, c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query would fail for as long as a new index is being built."""

    def refuse(*_: Any) -> int:
        raise IndexNotBuiltError("still being built", index="by_owner", percent=3)

    for partition in range(2):
        monkeypatch.setattr(c.replica(partition, partition).index, "wait_for", refuse)
    assert table.scan(filter=col("owner") == "o7").num_rows == 60


def test_followers_give_the_same_rows_as_of_a_time(c: Coordinator, table: TableClient) -> None:
    """A job over followers would need to read everything to filter it."""
    rows = Selection(table.codec, col("owner") == "o7", ["id"], None)
    as_of = table.read_time(max_staleness_seconds=0).as_of
    c.until_each("up", ((1, 0), (0, 1)), lambda at: c.replica(*at).positions.readable_time > as_of)
    found = pa.Table.from_batches(table.select(rows, as_of=as_of, anywhere=True))
    assert ids(found) == [row["id"] for row in ROWS if row["owner"] == "o7"]


def test_what_does_not_fit_the_table_is_refused_at_both_ends(
    table: TableClient, c: Coordinator
) -> None:
    """A client of another version, or a hostile one, sends what this one would not."""
    with pytest.raises(InvalidFilterError, match="none"):
        table.scan(filter=col("none") == 1)
    with pytest.raises(InvalidFilterError):
        table.scan(columns=["id", "none"])
    codec = table.codec
    for wrong in ({"filter": (col("none") == 1).terms}, {"columns": ("none",)}):
        replica = c.replica(0, 0)
        ticket = SelectTicket(partition=0, **wrong)
        with pytest.raises(InvalidFilterError):
            next(select_batches(replica, replica.index, ticket, codec))
