"""What a Spark query on a zone asks of real data nodes, and that its result is Spark's own."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_kit import finish
from replica_cluster import FAST, Coordinator, cluster

from rezone.client import TableClient, col
from rezone.datanode.node import data
from rezone.datanode.reading.read import prepare_read
from rezone.datanode.reading.scan import scan_batches
from rezone.datanode.reading.select import select_batches
from rezone.datanode.service import server
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("owner", ColumnType.STRING),
        Column("amount", ColumnType.FLOAT64),
        Column("day", ColumnType.DATE32),
    ),
    primary_key=("id",),
    indexes=(Index("by_owner", ("owner",)),),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
ROWS = [
    {
        "id": n,
        "owner": f"o{n % 100}" if n % 7 else None,
        "amount": float("nan") if n % 11 == 0 else n / 4,
        "day": None,
    }
    for n in range(2000)
]


@pytest.fixture(scope="module")
def zone(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Yield a node that leads two partitions with the rows, known to Spark."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    datasource.register(spark, push_filters=True)
    with cluster(tmp_path_factory.mktemp("zone"), 1, config=CONFIG, settings=FAST) as nodes:
        for partition in range(2):
            nodes.create(partition, (0,))
        with TableClient(list(nodes.peers.values())) as table:
            table.write(ROWS)
        yield nodes


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """Return how many rows, with which columns, leave the data nodes for each request."""
    found: list[tuple[int, tuple[str, ...]]] = []

    def watched(rows: Any) -> Iterator[Any]:
        at = len(found)
        found.append((0, ()))
        for batch, told in rows:
            found[at] = (found[at][0] + batch.num_rows, tuple(batch.schema.names))
            yield batch, told

    monkeypatch.setattr(server, "select_batches", lambda *given: watched(select_batches(*given)))
    monkeypatch.setattr(server, "scan_batches", lambda *given: watched(scan_batches(*given)))
    return found


def address(zone: Coordinator) -> str:
    """Return where the zone is found."""
    return str(zone.nodes[0].address)


@pytest.mark.proves("SP-02")
def test_filters_of_a_query_run_at_the_data_nodes_and_mean_what_they_mean_to_spark(
    spark: Any, zone: Coordinator, sent: list[tuple[int, tuple[str, ...]]]
) -> None:
    """Spark does not look again at a row that a source says it has filtered."""
    frame = spark.read.format("rezone").option("bootstrap", address(zone)).load()
    # Not cached: Spark's cache passes over batches by bounds that leave NaN out.
    local = spark.createDataFrame([tuple(row.values()) for row in ROWS], frame.schema)
    queries = [
        "amount > 490 and id < 1990",
        "owner like 'o1%' and amount is not null and not (id = 10)",
        "owner <=> null and not (amount <=> 0.5D) and id < 100",
        "id in (1, 5, 70000) and amount <= 'NaN'",
        "owner not in ('o1', 'o2') and id between 5 and 50",
    ]
    passes = [f"coalesce({query}, false) as q{n}" for n, query in enumerate(queries)]
    expected = local.selectExpr("id", *passes).collect()
    for number, query in enumerate(queries):
        sent.clear()
        found = {row["id"] for row in frame.where(query).collect()}
        assert found == {row["id"] for row in expected if row[f"q{number}"]}, query
        assert sum(rows for rows, _ in sent) == len(found), query
    sent.clear()
    assert frame.where("id = 5").count() == 1
    assert len(sent) == 1, "the other partition was asked for a key that it cannot have"
    both = frame.where("owner = 'o7' and id % 2 = 1")
    plan = both._jdf.queryExecution().executedPlan().toString()
    assert "% 2" in plan
    assert "o7" not in plan, "Spark evaluates what the data nodes have evaluated"


@pytest.mark.proves("SP-02")
def test_columns_and_a_limit_are_said_to_the_reader(
    spark: Any, zone: Coordinator, sent: list[tuple[int, tuple[str, ...]]]
) -> None:
    """Spark tells a Python source of neither, so all columns of all rows would be sent."""
    from rezone.transfer.datasource import read_table  # noqa: PLC0415 - imports pyspark

    rows = (col("owner") == "o7") | (col("id") == 3)
    found = read_table(spark, address(zone), columns=["amount", "id"], filter=rows, limit=9)
    assert found.columns == ["amount", "id"]
    assert found.count() == 9
    assert sum(rows for rows, _ in sent) <= 9
    assert {columns for rows, columns in sent if rows} == {("amount", "id")}
    ten = read_table(spark, address(zone), limit=10)
    assert ten.where("id < 0").count() == 0
    assert ten.count() == 10, "a limit counts before the filters of a query"
    with pytest.raises(Exception, match="none"):
        read_table(spark, address(zone), columns=["none"])
    with pytest.raises(Exception, match="limit"):
        spark.read.format("rezone").options(bootstrap=address(zone), limit="-1").load().count()


@pytest.mark.proves("SP-02")
def test_explain_shows_what_was_pushed_down(
    spark: Any, zone: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever looks for why a query is slow would not see that it scans the whole zone."""
    from rezone.transfer.datasource import explain, read_table  # noqa: PLC0415 - imports pyspark

    def explained(frame: Any) -> tuple[str, str]:
        explain(frame)
        plan, _, pushed = capsys.readouterr().out.partition("== Pushed down to data nodes ==\n")
        return plan, pushed

    def loaded() -> Any:
        return spark.read.format("rezone").option("bootstrap", address(zone)).load()

    plan, pushed = explained(loaded().where("id = 5 and owner like '%7%7'"))
    assert "PushedFilters: [IsNotNull(owner), EqualTo(id,5)]" in plan
    assert "ReadSchema: struct<id:bigint,owner:string,amount:double,day:date>" in plan
    assert "(1) zone z: partitions 1 of 2, rows by key (1)\n" in pushed
    said = "(NOT owner IS NULL AND id = 5)"
    assert f"filter: {said}\n    columns: id, owner, amount, day\n    limit: none\n" in pushed
    rows = (col("owner") == "o7") & (col("amount") > 10)
    by_index = read_table(spark, address(zone), columns=["id"], filter=rows, limit=3)
    both = by_index.join(loaded().where("id < 0"), "id")
    _, pushed = explained(both)
    assert "(1) zone z: partitions 2 of 2, rows by index by_owner\n" in pushed
    assert "filter: (owner = 'o7' AND amount > 10)\n    columns: id\n    limit: 3\n" in pushed
    assert "(2) zone z: partitions 2 of 2, rows by scan\n" in pushed
    none = read_table(spark, address(zone), filter=col("id").is_in([]))
    assert none.count() == 0
    assert "partitions 0 of 2" in explained(none)[1]
    frame = loaded()
    assert "as of: the newest commit of each partition" in explained(frame)[1]
    with TableClient(list(zone.peers.values())) as table:
        table.write([{"id": -1, "owner": "later", "amount": 0.0, "day": None}])
        assert frame.count() == len(ROWS) + 1
        table.delete(-1)
    assert not explained(spark.range(3))[1]


@pytest.mark.proves("SP-02")
def test_workers_are_rid_of_what_spark_collects_after_each_task(
    spark: Any, zone: Coordinator
) -> None:
    """A query of few rows would take most of its processor time to look at modules."""

    def frozen(_: Any) -> Iterator[Any]:
        import gc  # noqa: PLC0415 - runs in a worker

        import pyarrow as pa  # noqa: PLC0415 - runs in a worker

        yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    frame = spark.read.format("rezone").option("bootstrap", address(zone)).load()
    assert frame.count() == len(ROWS)
    found = spark.range(0, 4, 1, 4).mapInArrow(frozen, "objects long").collect()
    assert max(row["objects"] for row in found) > 10_000, "those that have just read are used again"


@pytest.mark.proves("SP-02")
def test_without_the_configuration_queries_run_as_before(spark: Any, zone: Coordinator) -> None:
    """A source that takes filters fails each query of a session that has them off."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    spark.conf.set(datasource.PUSHDOWN_CONF, "false")
    try:
        spark.dataSource.register(datasource.RezoneDataSource)
        frame = spark.read.format("rezone").option("bootstrap", address(zone)).load()
        assert frame.where("owner = 'o7'").count() == 17
    finally:
        datasource.register(spark, push_filters=True)


@pytest.mark.proves("SP-08")
def test_a_lookup_join_reads_the_keys_that_there_are_and_scans_nothing(
    spark: Any,
    zone: Coordinator,
    sent: list[tuple[int, tuple[str, ...]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that is joined by a scan reads the whole zone for each batch."""
    from rezone.transfer.lookup import lookup  # noqa: PLC0415 - imports pyspark

    asked: list[int] = []

    def prepared(*given: Any) -> Any:
        found = prepare_read(*given)
        asked.append(len(found.row_ids))
        return found

    monkeypatch.setattr(data, "prepare_read", prepared)
    orders = [(n % 50 * 100 if n % 9 else None, f"order {n}") for n in range(400)]
    frame = spark.createDataFrame(orders, "customer long, text string").repartition(2)
    owners = {row["id"]: row["owner"] for row in ROWS}
    expected = Counter((c, t, owners[c]) for c, t in orders if c in owners)
    joined = lookup(frame, address(zone), on={"customer": "id"}, columns=["owner"])
    assert Counter(map(tuple, joined.collect())) == expected
    assert not sent, "the zone was scanned"
    assert 50 <= sum(asked) <= 2 * 50, "a key was asked for more than once by a task"
    with TableClient(list(zone.peers.values())) as table:
        left = lookup(
            frame,
            address(zone),
            on={"customer": "id"},
            columns=["owner"],
            how="left",
            at_one_time=True,
        )
        table.write([{**row, "owner": "later"} for row in ROWS[:1000]])
        found = Counter(map(tuple, left.collect()))
        table.write(ROWS[:1000])
    assert found == Counter((c, t, owners.get(c)) for c, t in orders)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"on": {"text": "id"}}, "must be bigint"),
        ({"on": ["customer"]}, "primary key"),
        ({"on": {"customer": "id"}, "columns": ["none"]}, "the zone has no"),
        ({"on": {"customer": "id"}, "how": "outer"}, "how is"),
    ]
    for given, message in wrong:
        with pytest.raises(ValueError, match=message):
            lookup(frame, address(zone), **given)


@pytest.mark.proves("SP-08")
def test_a_stream_is_joined_by_lookups(
    spark: Any, zone: Coordinator, sent: list[tuple[int, tuple[str, ...]]], tmp_path: Path
) -> None:
    """The rows of a micro-batch meet the zone's rows of that moment."""
    from rezone.transfer.lookup import lookup  # noqa: PLC0415 - imports pyspark

    (tmp_path / "rows.json").write_text('{"id": 7}\n{"id": 8}\n{"id": 70000}')
    stream = spark.readStream.schema("id long").json(str(tmp_path / "*.json"))
    joined = lookup(stream, address(zone), on="id", columns=["amount"], how="left")
    found: list[tuple[Any, ...]] = []
    query = joined.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    finish(query, tmp_path / "checkpoint")
    assert sorted(map(tuple, found)) == [(7, 1.75), (8, 2.0), (70000, None)]
    assert not sent
    with pytest.raises(ValueError, match="one time"):
        lookup(stream, address(zone), on="id", at_one_time=True)
