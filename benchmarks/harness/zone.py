"""A zone of data nodes in processes of their own, watched as the operator watches it.

The coordinator's part is that of the tests (`tests/datanode/replica_cluster.py`). Beside it a
long-polled report of each node is always under way, because that is what a node pays for in a
real cluster as well.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from replica_cluster import Coordinator, ProcessNode, cluster

from rezone.client import TableClient
from rezone.controller.nodes.node_state import NodeState, request_after, with_answer
from rezone.wire.codec import rows
from rezone.wire.codec.keyspace import partitions_of
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeReport, ReplicaReport, ZoneConfig
from rezone.wire.transport.flight import NodeClient

TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("name", ColumnType.STRING),
        Column("amount", ColumnType.INT64),
        Column("payload", ColumnType.STRING),
    ),
    primary_key=("id",),
)
SCHEMA = rows.arrow_schema_of(TABLE)
_POLL_MS = 1000
_DEADLINE_SECONDS = 60.0
_LOAD_ROWS = 20_000
_WRITES_AT_ONCE = 4
_TICKS = os.sysconf("SC_CLK_TCK")


def batch_of(ids: list[int], amount: int) -> Any:
    """Return rows of about 150 bytes with these keys."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.int64()),
            pa.array([f"row-{i}" for i in ids]),
            pa.array([amount] * len(ids), pa.int64()),
            pa.array(["x" * 120] * len(ids)),
        ],
        schema=SCHEMA,
    )


class Zone:
    """A running zone: its coordinator, its nodes' newest reports, their CPU times."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.partitions = coordinator.config.partitions
        self.reports: dict[int, NodeState] = {}
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._pollers = [
            threading.Thread(target=self._poll, args=(node,), daemon=True)
            for node in coordinator.nodes
        ]
        for poller in self._pollers:
            poller.start()

    def _poll(self, node: int) -> None:
        client = NodeClient(self.coordinator.nodes[node].address)
        node_state: NodeState | None = None
        while not self._stop.is_set():
            with contextlib.suppress(RezoneError):
                answer = client.call(request_after(node_state, _POLL_MS), NodeReport)
                node_state = with_answer(node_state, answer)
                with self._news:
                    self.reports[node] = node_state
                    self._news.notify_all()
        client.close()

    def wait(self, what: str, check: Callable[[], object]) -> None:
        """Wait until `check` is true; looked at with every report."""
        with self._news:
            assert self._news.wait_for(check, _DEADLINE_SECONDS), f"{what}: {self.reports}"

    def replica(self, node: int, partition: int) -> ReplicaReport | None:
        """Return the newest report of a replica."""
        report = self.reports.get(node)
        return report.replicas.get(partition) if report is not None else None

    def streaming(self, partition: int) -> bool:
        """Whether every follower of the partition follows its leader."""
        record = self.coordinator.records[partition]
        leader = self.replica(record.leader, partition)
        followers = set(record.replicas) - {record.leader}
        return leader is not None and followers <= {
            node
            for node, durable in leader.follower_offsets.items()
            if durable >= leader.committed_offset
        }

    def client(self) -> TableClient:
        """Return a client; the caller closes it."""
        return TableClient([node.address for node in self.coordinator.nodes.values()])

    def load(self, count: int) -> None:
        """Write `count` rows, and wait until they have settled."""
        with self.client() as client:
            for start in range(0, count, _LOAD_ROWS):
                client.write(batch_of(list(range(start, min(start + _LOAD_ROWS, count))), 0))

    def cpu_seconds(self) -> dict[int, float]:
        """Return the CPU time each node's process has used."""
        return {
            number: cpu_of(node.process.pid)
            for number, node in self.coordinator.nodes.items()
            if isinstance(node, ProcessNode) and node.process is not None
        }

    def switches(self) -> int:
        """Return how often threads of the nodes have waited so far."""
        return sum(map(switches_of, self.pids()))

    def pids(self) -> list[int]:
        """Return the nodes' process ids, for a profiler."""
        nodes = self.coordinator.nodes.values()
        return [n.process.pid for n in nodes if isinstance(n, ProcessNode) and n.process]

    def close(self) -> None:
        """End the pollers."""
        self._stop.set()
        for poller in self._pollers:
            poller.join(_POLL_MS / 1000 + 1)


def cpu_of(pid: int, *, ended: bool = False) -> float:
    """Return the CPU time that a process has used, in seconds; with its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if ended else 13])) / _TICKS


def switches_of(pid: int) -> int:
    """Return the voluntary context switches of a process's threads; of those that ended none."""
    found = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            _, _, count = status.read_text().rpartition("\nvoluntary_ctxt_switches:")
            found += int(count.split()[0])
    return found


def ids_by_partition(partitions: int, each: int, start: int = 1 << 40) -> list[list[int]]:
    """Return `each` keys of every partition, apart from those that `load` writes."""
    codec = rows.RowCodec(TABLE)
    ids = list(range(start, start + each * partitions * 4))
    batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=codec.key_schema)
    where = partitions_of(rows.hash_of(codec.encode_keys(batch)), partitions)
    return [(start + np.flatnonzero(where == p)[:each]).tolist() for p in range(partitions)]


@contextlib.contextmanager
def running_zone(
    nodes: int,
    partitions: int,
    replicas: int,
    *,
    leading: int = 0,
    indexes: tuple[Index, ...] = (),
    node: type[ProcessNode] = ProcessNode,
) -> Iterator[Zone]:
    """Start nodes, make partitions with leaders spread evenly; all gone at the end.

    `leading`: only so many of the nodes lead, all of them by default. `indexes` are those of the
    table. `node` is what runs a data node.
    """
    directory = Path(tempfile.mkdtemp(prefix="rezone-bench-"))
    config = ZoneConfig(
        zone="bench",
        zone_uid="uid-bench",
        partitions=partitions,
        table=TableSchema(TABLE.columns, TABLE.primary_key, indexes),
        min_in_sync_replicas=min(2, replicas),
    )
    try:
        with cluster(directory, nodes, processes=True, process=node, config=config) as coordinator:
            for partition in range(partitions):
                chosen = tuple(
                    (partition % (leading or nodes) + i) % nodes for i in range(replicas)
                )
                coordinator.create(partition, chosen)
            zone = Zone(coordinator)
            try:
                zone.wait("all streams", lambda: all(map(zone.streaming, range(partitions))))
                yield zone
            finally:
                zone.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def write_all(client: TableClient, batches: list[Any]) -> None:
    """Write batches one after the other, some of them under way at a time."""
    waiting: list[Any] = []
    for batch in batches:
        if len(waiting) == _WRITES_AT_ONCE:
            waiting.pop(0).result()
        waiting.append(client.submit_write(batch))
    for future in waiting:
        future.result()


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies; NaN without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def settle(seconds: float) -> float:
    """Let the nodes run on for a while; return how long it really was."""
    started = time.monotonic()
    threading.Event().wait(seconds)
    return time.monotonic() - started
