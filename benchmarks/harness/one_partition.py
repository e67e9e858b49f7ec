"""One partition whose leader alone has it: copied to others, and taken away from them again."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from replica_cluster import Coordinator, ProcessNode, cluster

from harness.traffic import batch_of
from rezone.client import TableClient
from rezone.controller.nodes.node_state import NodeState, request_after, with_answer
from rezone.wire.copying.copy import Relay, copy_partition
from rezone.wire.copying.sink import FlightSink
from rezone.wire.messages import (
    AdmitCopies,
    AdmittedCopy,
    BulkInsert,
    NodeReport,
    PullSnapshot,
    Role,
    StopReplica,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient

P = 0
KEY_BYTES = 8
LOAD_BYTES = 4 << 20
NEVER = 1 << 62
ADMITTED_SECONDS = 600.0


@contextlib.contextmanager
def source_zone(
    directory: Path, rows: int, value_bytes: int, config: ZoneConfig | None = None
) -> Iterator[Coordinator]:
    """Two nodes of which the first has all rows, and sends them in either form."""
    with cluster(directory, 3, processes=True, config=config) as c:
        # Node 2 takes no part but for being restarted: see `form`.
        c.create(P, (0,))
        load(c, rows, value_bytes)
        yield c


def load(c: Coordinator, rows: int, value_bytes: int) -> None:
    """Write rows through node 0, some batches at a time."""
    with TableClient([c.nodes[0].address]) as client:
        step = max(1, LOAD_BYTES // (value_bytes + KEY_BYTES))
        pending = []
        for start in range(0, rows, step):
            numbers = list(range(start, min(start + step, rows)))
            pending.append(client.submit_write(batch_of(numbers, value_bytes, start)))
            if len(pending) > 4:
                pending.pop(0).result()
        for outcome in pending:
            outcome.result()


def restart(c: Coordinator, form: str) -> None:
    """Start the source again, to send in a form."""
    node = c.nodes[0]
    assert isinstance(node, ProcessNode)
    node.stop()
    node.arguments = (f"--file-snapshot-bytes-min={0 if form == 'files' else NEVER}",)
    node.start()
    c.wait_up(0)
    c.send(P, c.records[P])
    c.until("leads", lambda: c.report(0, P).role is Role.LEADER)


def set_share(c: Coordinator, percent: int) -> None:
    """Change the zone's `rebalance.foregroundTargetPercent` at all nodes."""
    c.config = msgspec.structs.replace(c.config, foreground_target_percent=percent)
    c.configure()


def prepare(c: Coordinator, receivers: Sequence[int] = (1,)) -> None:
    """Make nodes empty learners."""
    c.change(P, replicas=(0, *receivers))
    c.until("learners", lambda: all(c.report(node, P).needs_snapshot for node in receivers))


def discard(c: Coordinator, receivers: Sequence[int] = (1,)) -> None:
    """Take their replicas away again."""

    def joined() -> bool:
        c.settle()
        return c.isr(P) == {0, *receivers}

    c.until("joined", joined)
    record = c.change(P, replicas=(0,), isr=(0,))
    stop = StopReplica(
        fence=c.fence(),
        partition=P,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
    )
    for node in receivers:
        c.call(node, stop)


def pulled(c: Coordinator) -> float:
    """Copy node to node; return the seconds."""
    begun = time.monotonic()
    c.call(1, PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address))
    node_state: NodeState | None = None
    while True:
        answer = c.call(1, request_after(node_state, timeout_ms=1000), NodeReport)
        node_state = with_answer(node_state, answer)
        copy = node_state.replicas[P].copy
        if copy is not None and (copy.done or copy.error):
            assert not copy.error, copy.error
            return time.monotonic() - begun


def admit(c: Coordinator, receivers: Sequence[int]) -> None:
    """Let copies to these nodes begin that others bring."""
    admitted = (AdmittedCopy(P),)
    order = AdmitCopies(fence=c.fence(), admitted=admitted, held=(), seconds=ADMITTED_SECONDS)
    for node in receivers:
        c.call(node, order)


def relayed(c: Coordinator) -> float:
    """Copy through this process; return the seconds."""
    admit(c, (1,))
    begun = time.monotonic()
    descriptor = BulkInsert(
        partition=P, snapshot_source=0, attempt=str(begun), revision=c.fence().revision
    )
    sink = FlightSink("node 1", NodeClient(c.nodes[1].address), descriptor)
    (receipt,) = copy_partition(Relay(P, NodeClient(c.nodes[0].address), [sink], reader="bench"))
    assert not receipt.error, receipt.error
    return time.monotonic() - begun
