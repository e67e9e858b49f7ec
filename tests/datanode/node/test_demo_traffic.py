"""The demo's traffic on real data nodes: what it records is what the checker needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.chaos.linear import build_checker
from e2e.histories import impossible_rows
from replica_cluster import cluster

from rezone.cli.demo.operations import Operations
from rezone.cli.demo.table import generated_table
from rezone.cli.demo.traffic import Traffic
from rezone.local.errors import MissingToolError
from rezone.transfer.generated import GENERATED
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.proves("TR-01"), pytest.mark.slow]


def test_histories_of_traffic_are_checked_over_a_leader_transfer(tmp_path: Path) -> None:
    """Traffic that records the wrong times or values would make false alarms, or none at all.

    A row that goes back to the value before its last write is found in what was recorded.
    """
    try:
        build_checker()
    except MissingToolError as error:
        pytest.skip(str(error))
    config = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=GENERATED)
    operations = Operations()
    with cluster(tmp_path, 2, config=config) as c:
        for partition in (0, 1):
            c.create(partition, (0, 1))
        bootstrap = list(c.peers.values())
        traffic = Traffic(bootstrap, generated_table(0), 2, operations=operations)
        traffic.start()
        c.until("reads", lambda: traffic.read_count > 3)
        c.move(0, 1)
        before = traffic.read_count
        c.until("more reads", lambda: traffic.read_count > before + 3)
        traffic.stop()

    history = operations.take()
    assert (traffic.write_failures, traffic.stale_reads) == ([], [])
    acknowledged = sum(len(acks) for acks in traffic.acks.values())
    assert sum(each.write and each.return_ns is not None for each in history) == 4 * acknowledged
    assert impossible_rows(history, tmp_path / "right") == []
    last = max((each for each in history if each.write), key=lambda each: each.value)
    late = max(each.return_ns or 0 for each in history) + 1
    stale = last._replace(write=False, value=last.value - 1, call_ns=late, return_ns=late + 1)
    assert len(impossible_rows([*history, stale], tmp_path / "wrong")) == 1
