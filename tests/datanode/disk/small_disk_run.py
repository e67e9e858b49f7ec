"""One data node on a small file system of its own, and a named feed that never acknowledges.

    python small_disk_run.py DIRECTORY BYTES

In namespaces of its own: the file system, and the loopback, end with them. More rows are written
than the disk has room for; the feed may keep more than that. The last line on standard output is
JSON, and says what happened.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
from e2e.chaos import apart
from replica_cluster import Coordinator, ProcessNode, cluster

from rezone.client import TableClient
from rezone.datanode.disk.space import free_bytes
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.errors import FeedTruncatedError
from rezone.wire.messages import FeedLimits, ZoneConfig

MIB = 1 << 20
PAUSE_SECONDS = 0.01

WRITTEN_SHARE = 1.6
ROWS, ROW_BYTES, BATCH_ROWS = 2_000, 1024, 500
CONFIG = ZoneConfig(
    zone="z",
    zone_uid="u",
    partitions=1,
    min_in_sync_replicas=1,
    log_retention_bytes=4 * MIB,
    version_retention_seconds=1,
    feeds=(FeedLimits(name="billing", bytes_max=1 << 40, age_seconds_max=86_400),),
)


class SmallNode(ProcessNode):
    """A data node that looks after its disk as often as so small a one needs."""

    loaded = False

    def __init__(self, node_id: int, directory: Path, *arguments: str) -> None:
        super().__init__(node_id, directory, *arguments)
        self.environment |= {
            "REZONE_NODE_TRIM_INTERVAL_MS": "100",
            "REZONE_NODE_WRITE_BUFFERS_BYTES": str(8 * MIB),
            "REZONE_NODE_COLLECT_PERCENT_MAX": "90",
        }


def batches() -> list[Any]:
    """Return batches of rows that do not compress."""
    noise = random.Random(7)
    schema, found = arrow_schema_of(CONFIG.table), []
    for first in range(0, ROWS, BATCH_ROWS):
        keys = pa.array(
            [n.to_bytes(8, "big") for n in range(first, first + BATCH_ROWS)], pa.binary()
        )
        values = pa.array([noise.randbytes(ROW_BYTES) for _ in range(BATCH_ROWS)], pa.binary())
        found.append(pa.RecordBatch.from_arrays([keys, values], schema=schema))
    return found


def write(c: Coordinator, client: TableClient, disk: Path, size: int) -> dict[str, Any]:
    """Write until much more was written than the disk has; return how the node took it."""
    pause = threading.Event()
    turn, free_least, full, log_most = batches(), size, "", 0
    writes = int(WRITTEN_SHARE * size / (BATCH_ROWS * ROW_BYTES))
    for number in range(writes):
        client.write(turn[number % len(turn)])
        pause.wait(PAUSE_SECONDS)
        free_least = min(free_least, free_bytes(disk))
        if number % 20 == 0:
            full = full or c.report(0, 0).disk.value
            logs = [each.stat().st_size for each in disk.rglob("log/*") if each.is_file()]
            log_most = max(log_most, sum(logs))
    return {
        "written": writes * BATCH_ROWS,
        "free_least": free_least,
        "disk": full,
        "log_most": log_most,
    }


def main() -> None:
    """Run it, and print what happened."""
    directory, size = Path(sys.argv[1]), int(sys.argv[2])
    disk = directory / "node0"
    disk.mkdir()
    apart.raise_loopback()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    with cluster(directory, 1, processes=True, process=SmallNode, config=CONFIG) as c:
        c.create(0, (0,))
        with TableClient(list(c.peers.values())) as client:
            with client.changes() as feed:
                token = feed.poll(10.0).token
            found = write(c, client, disk, size)
            try:
                with client.changes(token) as feed:
                    found["told"] = f"{feed.poll(10.0).changes.num_rows} changes"
            except FeedTruncatedError as error:
                found["told"] = type(error).__name__
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
