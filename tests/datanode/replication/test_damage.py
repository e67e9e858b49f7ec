"""Damage in a running group: found by whoever reads, told, and mended from the other replicas."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import FAST, Client, Coordinator, cluster

from rezone.storage.disk.partition_directory import quarantine_name
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.storage.store_config import StoreConfig
from rezone.wire.errors import ConflictError, CorruptionError, NotReadyError
from rezone.wire.messages import (
    ConfigureNode,
    PullSnapshot,
    ReplicaReport,
    Role,
    UpgradeCandidate,
    ZoneConfig,
)

P = 0
SMALL = StoreConfig(log_segment_bytes=16 << 10, rocks=RocksSettings(write_buffer_bytes=64 << 10))
SETTINGS = msgspec.structs.replace(FAST, lease_ms=300, apply_interval_ms=10)
KEYS = [f"k{i:05d}".encode() for i in range(2_000)]


def values(seed: int) -> dict[bytes, bytes]:
    """Return rows of 100 bytes that do not compress."""
    random_bytes = random.Random(seed).randbytes
    return {key: random_bytes(100) for key in KEYS}


@contextmanager
def filled(directory: Path) -> Iterator[tuple[Coordinator, Client, dict[bytes, bytes]]]:
    """Give three replicas with the same rows in files, led by node 0; all must agree at the end."""
    with cluster(directory, 3, settings=SETTINGS, store_config=SMALL) as c:
        c.create(P, (0, 1, 2))
        client = Client(c)
        for seed in range(2):
            written = client.put(P, values(seed)).commit_time
        c.until_each(
            "applied", c.nodes, lambda node: c.replica(node).positions.readable_time >= written
        )
        for node in c.nodes:
            c.replica(node).store.flush()
        yield c, client, values(1)
        rows = {**values(1), b"after": b"1"}
        client.put(P, {b"after": b"1"})
        c.until_settled("in sync", lambda: c.isr(P) == {0, 1, 2})
        digests = c.until("digests", lambda: c.digests(P))
        assert len({d.digests for d in digests.values()}) == 1
        assert client.get(P, [*KEYS, b"after"]) == rows
        assert not any(c.replica(node).damage.reason for node in c.nodes)
        client.close()


def strike(path: Path) -> None:
    """Turn bits over all through a file, but for its ends."""
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 8, len(data) * 7 // 8, 512):
        data[at] ^= 0x10
    # Into the same file: who has it open reads it.
    with path.open("r+b") as file:
        file.write(data)


def strike_engine(c: Coordinator, node: int) -> None:
    """Damage the rows of a running node that are on its disk."""
    tables = list((c.nodes[node].directory / "partitions" / str(P) / "engine").glob("*.sst"))
    assert tables
    for table in tables:
        strike(table)


def told(c: Coordinator, node: int) -> ReplicaReport:
    """Wait until a replica reports its damage."""

    def reported() -> ReplicaReport | None:
        report = c.report(node, P)
        return report if report.damage else None

    found: ReplicaReport = c.until(f"node {node} tells", reported)
    return found


def mend(c: Coordinator, node: int) -> None:
    """Do as the operator does for a replica that needs a copy: out of the set, then a copy."""
    record = c.records[P]
    assert told(c, node).needs_snapshot
    with pytest.raises(ConflictError):
        c.call(node, UpgradeCandidate(fence=c.fence(), partition=P, next_epoch=99))
    c.change(P, isr=tuple(n for n in record.isr if n != node))
    source = c.nodes[record.leader].address
    c.call(node, PullSnapshot(fence=c.fence(), partition=P, source=source))
    c.until("copied", lambda: not c.report(node, P).needs_snapshot)


def test_a_follower_that_finds_damage_while_it_serves_is_copied_again(tmp_path: Path) -> None:
    """It would answer errors for ever, and count as in sync with rows that it cannot read."""
    with filled(tmp_path) as (c, client, rows):
        as_of = c.replica(1).positions.readable_time
        strike_engine(c, 1)
        with pytest.raises(NotReadyError, match="damaged"):
            client.get(P, list(rows), as_of=as_of, node=1, retry=False)
        mend(c, 1)
        assert client.get(P, list(rows), as_of=as_of) == rows


def test_damage_that_nobody_reads_is_found_by_reading_all(tmp_path: Path) -> None:
    """Cold rows would rot until the other copies are gone."""
    with filled(tmp_path) as (c, _, _):
        strike_engine(c, 1)
        c.replica(1).upkeep.scrubber._due = 0.0
        with pytest.raises(CorruptionError):
            scrub(c.replica(1))
        mend(c, 1)


def scrub(partition: Any) -> None:
    """Read a replica through as the node's thread does."""
    while partition.upkeep.scrub():
        pass


def test_a_leader_that_finds_damage_hands_over_and_is_copied_again(tmp_path: Path) -> None:
    """Clients would get errors for rows that two other nodes have."""
    with filled(tmp_path) as (c, client, rows):
        strike_engine(c, 0)
        with pytest.raises(NotReadyError, match="damaged"):
            client.get(P, list(rows), retry=False)
        report = told(c, 0)
        assert report.role is Role.LEADER, "it hands over, no lease must be waited for"
        c.move(P, 1)
        mend(c, 0)
        assert client.get(P, list(rows)) == rows


def test_a_leader_that_cannot_apply_steps_down_at_once(tmp_path: Path) -> None:
    """Its partition would stand still, and nobody be asked to lead it."""
    with filled(tmp_path) as (c, client, _):
        c.replica(0).store.apply_to(c.replica(0).store.log_end)
        leader = c.replica(0)

        def broken(_offset: int) -> int:
            raise_damage(leader)
            return 0

        leader.store.apply_to = broken  # type: ignore[method-assign, assignment]
        with pytest.raises(NotReadyError):
            client.put(P, {KEYS[0]: values(1)[KEYS[0]]}, retry=False)
        report = told(c, 0)
        assert (report.role, report.needs_snapshot) == (Role.LEARNER, True)
        del leader.store.apply_to
        c.change(P, leader=1, leader_epoch=c.records[P].leader_epoch + 1, isr=(1, 2))
        mend(c, 0)


def raise_damage(partition: Any) -> None:
    """Fail as the engine does when it can no longer write."""
    raise CorruptionError(f"{partition.partition_id}: Corruption: for the test")


def test_a_leader_that_lost_acknowledged_log_does_not_lead_again(tmp_path: Path) -> None:
    """Its followers would roll back to what is left, and the rows be gone from all three."""
    with filled(tmp_path) as (c, _, _):
        node = c.nodes[0]
        node.stop()
        directory = node.directory / "partitions" / str(P)
        newest = max((directory / "log").iterdir())
        newest.write_bytes(newest.read_bytes()[:-50])
        before = newest.read_bytes()
        node.start()
        c.wait_up(0)
        report = told(c, 0)
        assert (report.role, report.needs_snapshot) == (Role.LEARNER, True)
        assert (quarantine_name(directory) / "log" / newest.name).read_bytes() == before
        c.change(P, leader=1, leader_epoch=c.records[P].leader_epoch + 1, isr=(1, 2))
        mend(c, 0)
        c.until("its files are removed", lambda: not quarantine_name(directory).exists())


def test_a_leader_alone_in_its_set_keeps_what_it_has(tmp_path: Path) -> None:
    """The last copy would be given up for a damaged block."""
    with cluster(tmp_path, 1, settings=SETTINGS, store_config=SMALL) as c:
        c.create(P, (0,))
        client = Client(c)
        client.put(P, values(1))
        c.replica(0).store.flush()
        strike_engine(c, 0)
        with pytest.raises(NotReadyError, match="damaged"):
            client.get(P, KEYS, retry=False)
        report = told(c, 0)
        assert (report.role, report.needs_snapshot) == (Role.LEADER, False)
        client.put(P, {b"more": b"1"})
        client.close()


def test_damaged_log_behind_the_engine_costs_a_follower_no_more_than_a_copy(
    tmp_path: Path,
) -> None:
    """It would ask for that log for ever, and never be in sync again."""
    with filled(tmp_path) as (c, client, _):
        c.nodes[2].stop()
        c.change(P, isr=(0, 1))
        client.put(P, values(0))
        client.put(P, values(1))
        c.until("applied", lambda: c.replica(0).store.applied == c.replica(0).store.log_end)
        log = sorted((c.nodes[0].directory / "partitions" / str(P) / "log").iterdir())
        for segment in log[:-1]:
            strike(segment)
        c.replica(0).store._log._tail.clear()
        c.nodes[2].start()
        c.wait_up(2)
        c.until("a copy is needed", lambda: c.report(2, P).needs_snapshot)
        assert not c.replica(0).damage.reason, "the leader has all rows"
        source = c.nodes[0].address
        c.call(2, PullSnapshot(fence=c.fence(), partition=P, source=source))
        c.until("copied", lambda: not c.report(2, P).needs_snapshot)


def test_a_node_whose_facts_are_damaged_is_told_them_again(tmp_path: Path) -> None:
    """It would end at each start, or start as a node of another zone with rows of this one."""
    with filled(tmp_path) as (c, _, _):
        node = c.nodes[1]
        node.stop()
        path = node.directory / "node.journal"
        strike(path)
        node.start()
        c.wait_up(1)
        assert not c.has_replica(1, P)
        other = msgspec.structs.replace(c.config, zone_uid="another")
        with pytest.raises(ConflictError, match="holds data of zone"):
            c.call(1, ConfigureNode(fence=c.fence(), config=other, peers=c.peers))
        c.call(1, ConfigureNode(fence=c.fence(), config=c.config, peers=c.peers))
        assert c.has_replica(1, P)
        assert path.with_name("node.journal.damaged").exists()


def test_a_damaged_partition_does_not_keep_its_node_from_serving_others(tmp_path: Path) -> None:
    """A pod would restart for ever because of one file of one partition."""
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=2)
    with cluster(tmp_path, 1, settings=SETTINGS, config=config) as c:
        for partition in (0, 1):
            c.create(partition, (0,))
        node = c.nodes[0]
        node.stop()
        shutil.rmtree(node.directory / "partitions" / "0" / "log")
        (node.directory / "partitions" / "0" / "meta.journal").write_bytes(b"RZJRN001 nothing")
        node.start()
        c.wait_up(0)
        assert c.report(0, 0).damage
        assert c.report(0, 1).role is Role.LEADER
