"""One real Spark session: the jobs and the data source as a SparkApplication runs them."""

import json
import pathlib
from typing import Any

import pyarrow as pa
import pytest
from fake_cluster import FakeCluster
from fake_snapshot import FakeStore, rows_of

from rezone.client import TableClient
from rezone.wire.codec import rows
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
ALL_TYPES = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        *(Column(f"c_{t.name.lower()}", t) for t in ColumnType),
    ),
    primary_key=("id",),
)


@pytest.mark.usefixtures("spark")
@pytest.mark.proves("OP-04", "SS-06", "B-05")
def test_the_copy_job_copies_resumes_and_reports(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B-05 through Spark: a source that dies once costs a retry from the resume point, no more.

    And one partition that never works fails the job, but not the copies of the others.
    """
    from rezone.transfer import copy_job  # noqa: PLC0415 - needs no Spark to be imported

    with FakeStore(0) as source, FakeStore(1) as one, FakeStore(2) as two:
        for partition in range(4):
            source.rows[partition] = rows_of(200 + partition)
        source.source_dies_after = [5]

        def entry(partition: int, revision: int = 1) -> PartitionCopy:
            return PartitionCopy(
                partition=partition,
                source=source.address,
                source_id=0,
                targets=tuple(CopyTarget(id=s.node, address=s.address) for s in (one, two)),
                revision=revision,
            )

        plan = tmp_path / "plan.json"
        plan.write_text(copyplan.dumps([entry(p) for p in range(3)]))
        arguments = ["--retry-pause-seconds", "0", "--keep-context"]
        assert copy_job.main(["--plan", str(plan), *arguments]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (report["copies"], report["failed"]) == (6, 0)
        assert len(source.tickets) == 4
        assert any(ticket.resume_after for ticket in source.tickets)
        for partition in range(3):
            assert one.rows[partition] == two.rows[partition] == source.rows[partition]
        one.revision = two.revision = 2
        text = copyplan.dumps([entry(3), entry(0)])
        assert copy_job.main(["--plan-json", text, *arguments]) == 1
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (report["copies"], report["failed"], report["skipped"]) == (4, 2, 2)
        assert "StaleRevisionError" in report["errors"][0]["error"]


@pytest.mark.proves("B-11")
def test_the_data_source_reads_and_writes_all_types(spark: Any) -> None:
    """B-11: what Spark writes, clients read, and the other way round, value by value."""
    from rezone.transfer import datasource  # noqa: PLC0415 - imports pyspark

    datasource.register(spark)
    with FakeCluster(ZoneConfig(zone="z", zone_uid="u", partitions=4, table=ALL_TYPES)) as cluster:
        options = {"bootstrap": ",".join(cluster.bootstrap), "zone": "z"}
        made = spark.range(500).selectExpr(
            "id",
            "if(id % 7 = 0, null, id % 2 = 0) as c_bool",
            "cast(id % 100 as tinyint) as c_int8",
            "cast(-id as smallint) as c_int16",
            "cast(id as int) as c_int32",
            "if(id % 5 = 0, null, -id) as c_int64",
            "cast(id / 3 as float) as c_float32",
            "id / 7 as c_float64",
            "if(id % 3 = 0, null, concat('n', id)) as c_string",
            "cast(concat('b', id) as binary) as c_binary",
            "date_add(date'1969-12-01', cast(id as int)) as c_date32",
            "timestampadd(microsecond, id, timestamp_ntz'1969-12-31 23:59:59') as c_timestamp_us",
        )
        writer = made.write.format("rezone").mode("append").options(**options)
        writer.save()
        writer.save()  # upserts: the same rows again
        read = spark.read.format("rezone").options(**options).load()
        assert read.schema.fieldNames() == [c.name for c in ALL_TYPES.columns]
        assert read.rdd.getNumPartitions() == 4
        expected = {r["id"]: r.asDict() for r in made.collect()}
        got = {r["id"]: r.asDict() for r in read.collect()}
        assert got == expected
        with TableClient(cluster.bootstrap) as client:
            table = client.scan()
            assert {r["id"]: r for r in table.to_pylist()} == {
                k: {**v, "c_binary": bytes(v["c_binary"])} for k, v in expected.items()
            }
        read.select("id").where("id < 100").write.format("rezone").mode("append").options(
            **options, operation="delete"
        ).save()
        assert read.selectExpr("min(id)", "count(*)").collect()[0] == (100, 400)
        with pytest.raises(Exception, match='needs the option "stagingDirectory"'):
            made.write.format("rezone").mode("overwrite").options(**options).save()
        with pytest.raises(Exception, match="serve zone 'z', not 'other'"):
            spark.read.format("rezone").options(**{**options, "zone": "other"}).load()
        with pytest.raises(Exception, match="bootstrap"):
            spark.read.format("rezone").load()


@pytest.mark.usefixtures("spark")
def test_the_load_job_generates_rows() -> None:
    """Generated rows must be those that a checker computes from the ids, to the byte."""
    from rezone.transfer import generated, load_job  # noqa: PLC0415 - imports pyspark

    config = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=generated.GENERATED)
    with FakeCluster(config) as cluster:
        common = ["--bootstrap", cluster.bootstrap[0], "--zone", "z", "--keep-context"]
        assert load_job.main([*common, "--generate", "3000", "--first-id", "9000"]) == 0
        with TableClient(cluster.bootstrap) as client:
            table = client.scan().sort_by("id")
        assert (
            table.combine_chunks()
            .to_batches()[0]
            .equals(generated.generated_batch(range(9000, 12_000)))
        )
        assert 190 < table.nbytes / table.num_rows < 230


def test_sparks_hash_is_the_zones_hash(spark: Any) -> None:
    """Re-sharding in Spark cuts by xxhash64: another hash would put rows into wrong partitions."""
    keys = [b"", b"\0", b"a", "é".encode(), *(bytes([n]) * n for n in range(1, 70))]
    frame = spark.createDataFrame([(bytearray(k),) for k in keys], "key binary")
    found = [r[0] % 2**64 for r in frame.selectExpr("xxhash64(key)").collect()]
    assert found == rows.hash_of(pa.array(keys, pa.binary())).tolist()
