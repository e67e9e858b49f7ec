"""A named feed that nobody reads, at a data node whose disk is a small file system of its own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_cluster import OPERATOR, Coordinator, ProcessNode, batch_of, cluster
from resharding_kit import zone

from rezone.client import TableClient
from rezone.wire.errors import FeedTruncatedError
from rezone.wire.messages import FeedLimits

DISK_BYTES = 256 << 20
RESERVE_BYTES = 64 << 20
LOG_FILE_BYTES = 32 << 20
WRITTEN_BYTES = 2 * DISK_BYTES
COLLECT_PERCENT_MAX = 90
"""Of the time old versions are collected, so that the log alone can fill the disk."""

ROWS, ROW_BYTES = 64, 32 << 10
FEED = FeedLimits("nobody", 1 << 40, 86_400)
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
MOUNT = f'mkdir -p "$0" && mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'


class NodeWithSmallDisk(ProcessNode):
    """A data node whose data are on a file system in memory, in a namespace of mounts of its own.

    Both end with the process.
    """

    def start(self) -> None:
        """Start it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        data = self.directory / "data"
        node = [sys.executable, "-m", self.module, f"--node-id={self.node_id}"]
        places = [f"--data-dir={data}", f"--listen={self.address}", "--health-port=0"]
        with (self.directory / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [*NAMESPACE, "sh", "-c", MOUNT, str(data), *node, *places],
                env={
                    **os.environ,
                    "PYTHONPATH": str(OPERATOR),
                    "REZONE_NODE_TRIM_INTERVAL_MS": "200",
                    "REZONE_NODE_DISK_RESERVE_BYTES": str(RESERVE_BYTES),
                    "REZONE_NODE_COLLECT_PERCENT_MAX": str(COLLECT_PERCENT_MAX),
                },
                stdout=log,
                stderr=log,
            )

    def free_bytes(self) -> int:
        """Return what is free on its disk."""
        assert self.process is not None
        found = os.statvfs(f"/proc/{self.process.pid}/root{self.directory / 'data'}")
        return found.f_bavail * found.f_frsize


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Give a zone of one partition with one replica, whose log a feed holds."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody have mounts of their own")
    config = zone(1, log_retention_bytes=0, version_retention_seconds=1, feeds=(FEED,))
    with cluster(
        tmp_path, 1, processes=True, process=NodeWithSmallDisk, config=config
    ) as coordinator:
        coordinator.create(0, (0,))
        yield coordinator


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.proves("CF-04")
def test_a_feed_that_nobody_reads_never_fills_the_disk(c: Coordinator) -> None:
    """Rows would be refused, or the node fail, for the sake of a feed that is forgotten."""
    node = c.nodes[0]
    assert isinstance(node, NodeWithSmallDisk)
    rng = random.Random(1)
    least = node.free_bytes()
    with TableClient(tuple(c.peers.values())) as table:
        with table.changes(since=0) as feed:
            token = feed.token
        assert token is not None
        for _ in range(WRITTEN_BYTES // (ROWS * ROW_BYTES)):
            table.write(batch_of({b"key %d" % n: rng.randbytes(ROW_BYTES) for n in range(ROWS)}))
            least = min(least, node.free_bytes())
        assert 0 < least < RESERVE_BYTES + 2 * LOG_FILE_BYTES, "the log has never been in the way"
        with pytest.raises(FeedTruncatedError):
            follow(table, token)


def follow(table: TableClient, token: str) -> None:
    """Read all changes behind a token, until that fails."""
    with table.changes(token) as feed:
        while True:
            feed.poll(1.0)
