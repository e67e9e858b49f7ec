"""Replicas of one zone are compared on real data nodes, the job's units run here, each twice."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bulk_kit import Here, attempt, client
from replica_cluster import Coordinator, ProcessNode, cluster
from resharding_kit import create_old, cut_over, overlaps_of, reshard, resharded, seal

from rezone.cli.jobs.follow import FAILED, end_of
from rezone.kube.jobs.bulk_jobs import JobView
from rezone.storage.engines.base import TIME_BYTES, behind
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.transfer.bulk import comparing
from rezone.transfer.verify_job import verify
from rezone.wire.codec import keyspace
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import ZoneConfig

pytestmark = pytest.mark.timeout(120)
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("text", ColumnType.STRING)),
    primary_key=("id",),
)
PARTITIONS, NODES, ROWS = 2, 3, 600


def given(zone: Coordinator, **more: Any) -> argparse.Namespace:
    """Return arguments of a job that compares replicas."""
    names = "zone tls_directory as_of save with_digests with_parquet with_zone with_bootstrap"
    addresses = ",".join(zone.peers.values())
    common = {"bootstrap": addresses, "ranges": 63, "tasks": 8, "replicas": True}
    return argparse.Namespace(**{**dict.fromkeys(names.split()), **common, **more})


@pytest.fixture(scope="module")
def zone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Yield a zone whose partitions have three replicas each, in processes."""
    config = ZoneConfig(zone="orders", zone_uid="u", partitions=PARTITIONS, table=TABLE)
    with cluster(tmp_path_factory.mktemp("zone"), NODES, processes=True, config=config) as found:
        for partition in range(PARTITIONS):
            found.create(partition, tuple((partition + n) % NODES for n in range(NODES)))
        with client(found) as table:
            table.write([{"id": n, "text": f"old {n}"} for n in range(ROWS)])
        yield found


def shown(result: dict[str, Any]) -> tuple[int, str]:
    """Return the exit code and the words of `rezone verify`."""
    return end_of(JobView("orders-1", "COMPLETED", "", "orders-1-driver", None, result), "ns")


def plant(node: ProcessNode, row_id: bytes) -> None:
    """Change a row in a node's store as no write does; the node is down."""
    changed = 0
    for current in node.directory.glob("data/**/CURRENT"):
        engine = RocksEngine(current.parent, RocksSettings())
        chains = engine.scan_chains(row_id, behind(row_id), rows_max=9, bytes_max=1 << 20)
        for key, value in zip(chains.keys, chains.values, strict=True):
            assert bytes(key)[:-TIME_BYTES] == row_id
            engine.apply([(bytes(key), bytes(value)[:-1] + b"?")], [], {})
            changed += 1
        engine.flush()
        engine.close()
    assert changed == 1


def is_in_sync(zone: Coordinator, node: int) -> bool:
    """Return whether all leaders say that they have a node in sync, and want no other set."""
    reports = [zone.report(zone.records[p].leader, p) for p in range(PARTITIONS)]
    follows = [each for each in reports if each.leader != node]
    return all(
        zone.isr(each.partition) == set(range(NODES))
        and each.proposal is None
        and each.follower_offsets.get(node) == each.log_end_offset
        and zone.report(node, each.partition).leader_heard
        for each in follows
    )


def require_equal(zone: Coordinator) -> None:
    """Check that rows a follower has not applied yet do not pass for rows that it lacks."""
    with client(zone) as table:
        table.write([{"id": 1, "text": "again"}])
    code, said = attempt(verify, given(zone))
    assert (code, said.get("equal"), said["first"]["rows"]) == (0, True, ROWS), said
    assert said["ranges"] == 64, "ranges are cuts of partitions"
    assert [(each["node"], each["partitions"], each["rows"]) for each in said["replicas"]] == [
        (node, PARTITIONS, ROWS) for node in range(NODES)
    ]
    assert shown(said)[0] == 0


def odd_one_out(zone: Coordinator, row_id: bytes) -> tuple[int, int, int]:
    """Give a replica another row, and leave it out of sync; return partition, leader, its node."""
    partition = keyspace.partition_of(keyspace.hash_in(row_id), PARTITIONS)
    leader = zone.records[partition].leader
    odd = max(node for node in range(NODES) if node != leader)
    node = zone.nodes[odd]
    assert isinstance(node, ProcessNode)
    node.end()
    others = set(range(NODES)) - {odd}
    zone.until_settled(
        "it is not in sync", lambda: all(zone.isr(each) == others for each in range(PARTITIONS))
    )
    plant(node, row_id)
    node.start()
    zone.wait_up(odd)
    return partition, leader, odd


def require_left_out(zone: Coordinator, odd: int) -> None:
    """Check that a replica that is not in sync is named, and not told to be different."""
    code, said = attempt(verify, given(zone, bootstrap=zone.peers[odd]))
    assert (code, said.get("equal"), said.get("differing")) == (FAILED, True, []), said
    assert said["notCompared"] == [{"partition": p, "node": odd} for p in range(PARTITIONS)]
    assert [each["node"] for each in said["replicas"]] == sorted(set(range(NODES)) - {odd})
    assert said["first"]["rows"] == ROWS
    code, text = shown(said)
    assert code == FAILED
    assert f"NOT COMPARED: partition 0 on data node {odd} is not in sync" in text


@pytest.mark.proves("SP-07")
def test_a_row_that_one_replica_has_otherwise_is_found_with_its_node(zone: Coordinator) -> None:
    """A replica whose disk has changed a row would lead one day, and give that row to everybody."""
    require_equal(zone)
    with client(zone) as table:
        batch = pa.RecordBatch.from_pylist([{"id": 77}], schema=table.codec.key_schema)
        row_id = encoded_rows(table.codec, batch).row_id_list()[0]
    partition, leader, odd = odd_one_out(zone, row_id)
    require_left_out(zone, odd)
    zone.until_settled("all are in sync again", lambda: is_in_sync(zone, odd))
    code, said = attempt(verify, given(zone))
    assert (code, said.get("equal"), said.get("notCompared")) == (1, False, []), said
    assert said["differences"] == [
        {"key": {"id": 77}, "is": comparing.CHANGED, "node": odd, "leader": leader}
    ]
    (found,) = said["differing"]
    assert (found["partition"], found["node"], found["leader"]) == (partition, odd, leader)
    assert (said["differingRanges"], said["narrowedRanges"], said["differingRows"]) == (1, 1, 1)
    code, text = shown(said)
    assert code == 1
    assert f"replicas on data nodes {odd} differ from their leaders" in text
    assert f"partition {partition} on data nodes {leader} (leader) and {odd}" in text


def test_what_cannot_be_compared_is_no_result(zone: Coordinator, tmp_path: Path) -> None:
    """A zone would count as verified whose replicas nobody has compared."""
    code, said = attempt(verify, given(zone, save=str(tmp_path / "x.json")))
    assert code == FAILED
    assert "not of its replicas" in said["error"]
    config = ZoneConfig(zone="one", zone_uid="v", partitions=1, table=TABLE)
    with cluster(tmp_path, 1, config=config) as alone:
        alone.create(0, (0,))
        code, said = attempt(verify, given(alone))
    assert code == FAILED
    assert "nothing to compare it with" in said["error"]
    told = {"job": "verify", "first": {"rows": 3, "asOf": 1, "digest": "d"}, "equal": True}
    code, text = shown({**told, "notCompared": [{"partition": 1, "node": 2}]})
    assert code == FAILED
    assert "NOT COMPARED: partition 1 on data node 2 is not in sync" in text


@pytest.mark.proves("SP-07")
def test_a_zone_that_is_re_sharded_says_so_and_is_compared_afterwards(tmp_path: Path) -> None:
    """Old partitions are sealed while they are read: replicas would differ, or be read for ever.

    One that begins under a job ends it with the same answer, whose exit code is not that of a
    difference.
    """
    config = ZoneConfig(zone="split", zone_uid="w", partitions=1, table=TABLE)
    with cluster(tmp_path, 2, config=config) as zone:
        create_old(zone)
        with client(zone) as table:
            table.write([{"id": n, "text": f"old {n}"} for n in range(ROWS)])

        class Late(Here):
            """Begins to re-shard, and cuts over, once the job has begun."""

            def __call__(self, *told: Any) -> list[Any]:
                reshard(zone, 2)
                zone.until_each(
                    "it is pulled", overlaps_of(zone), lambda each: resharded(zone, each)
                )
                seal(zone, 0)
                return super().__call__(*told)

        code, said = attempt(verify, given(zone), Late())
        assert (code, "cannot be read as of" in said["error"]) == (FAILED, True), said
        assert "partition 0 was re-sharded" in said["error"]
        code, said = attempt(verify, given(zone))
        assert code == FAILED
        assert "zone split is being re-sharded" in said["error"]
        cut_over(zone)
        code, said = attempt(verify, given(zone))
        assert (code, said.get("equal"), said["first"]["rows"]) == (0, True, ROWS), said
