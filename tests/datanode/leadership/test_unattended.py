"""Data nodes that nobody coordinates: no operator asks for reports, no record changes."""

from pathlib import Path

import msgspec
import pytest
from replica_cluster import FAST, Client, HandClock, cluster

P = 0
HOURS = 3


@pytest.mark.proves("B-09")
@pytest.mark.parametrize("lease_ms", [0, 1_000], ids=["without leases", "with leases"])
def test_reads_and_writes_go_on_for_hours_without_a_coordinator(
    tmp_path: Path, lease_ms: int
) -> None:
    """A leader takes writes and answers reads long after every lease and every limit has passed.

    Without it the data plane would stop with its operator, or a while after.
    """
    clock = HandClock()
    settings = msgspec.structs.replace(FAST, lease_ms=lease_ms)
    with cluster(tmp_path, 3, settings=settings, clock=clock) as c:
        c.create(P, (0, 1, 2))
        client = Client(c)
        client.put(P, {b"before": b"0"})
        for hour in range(HOURS):
            # Nobody polls from here on: `until` would.
            clock.advance(3600)
            key = b"%d" % hour
            client.put(P, {key: b"1"})
            assert client.get(P, [b"before", key]) == {b"before": b"0", key: b"1"}
        assert c.isr(P) == {0, 1, 2}
