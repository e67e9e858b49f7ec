"""Scans at a leader that may promise no time yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_cluster import cluster

from rezone.client import TableClient
from rezone.datanode.state.replica_state import ReplicaState


def test_a_scan_waits_for_a_time_that_the_leader_may_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing was written for longer than versions are kept, it failed for good."""
    promisable, asked = ReplicaState.promisable, []

    def not_yet(replica: ReplicaState) -> int:
        asked.append(replica)
        return 0 if len(asked) < 3 else promisable(replica)

    with cluster(tmp_path, 1) as c:
        c.create(0, (0,))
        monkeypatch.setattr(ReplicaState, "promisable", not_yet)
        with TableClient(list(c.peers.values())) as client:
            assert client.scan().num_rows == 0
    assert len(asked) >= 3
