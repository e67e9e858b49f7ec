"""Leaders that move without a copy: in batches, without a RegionMigration for each.

Where the next leader of a partition is in sync, was there before and is close, only the takeover is
left to do. The batch is the persisted intent: the task's status names its partitions, each with
the leader epoch it had. Then the route records are changed, in one write for each shard: the
candidate is authorized, as a migration's UpdateMetadataDown does. The old leaders are asked once to
hand over; from there on the zone brings each takeover to its end (`handover`): it asks again where
that was not heard, and writes down who leads.

A partition leaves its batch when its new leader is written. One that has a higher leader epoch and
not that leader was rolled back or failed over: a RegionMigration tries again, with its reasons and
attempts, and ends the batch's part when it exists. So a batch needs no memory beside the status.
"""

from rezone.domain.machines.migration_table import is_under_way
from rezone.domain.model.changes import change_of
from rezone.domain.model.world import ChangeRoutes, RequestTakeover, RouteChange
from rezone.domain.observed.leader_transfer import LeaderTransfer, authorization
from rezone.domain.observed.readiness import is_close, was_copied
from rezone.domain.rebalance.run import TaskRun
from rezone.domain.rebalance.survey import Wait
from rezone.resources.task import Handover
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId


def under_way(run: TaskRun) -> list[PartitionId]:
    """Return the partitions of the batch whose takeover is authorized: they may move just now."""
    found = []
    for handover in run.status.handovers:
        record = run.view.routes[handover.partition]
        if record.leader_epoch == handover.leader_epoch and record.next_leader is not None:
            found.append(handover.partition)
    return found


class Batch:
    """The task's handovers in one pass: those of the status, and those that join them now."""

    def __init__(self, run: TaskRun) -> None:
        self._run = run
        self._epochs = {
            each.partition: each.leader_epoch
            for each in run.status.handovers
            if not self._is_over(each.partition)
        }
        self._changes: list[RouteChange] = []
        self._calls: list[RequestTakeover] = []
        # Filled up when half of it is done: each time costs a write of the task's status.
        most = run.view.max_concurrent_handovers
        self._room = most - len(self._epochs) if len(self._epochs) <= most // 2 else 0
        self._busy = {m.partition for m in run.view.migrations if is_under_way(m)}

    def take(self, partition: PartitionId, node: NodeId) -> bool:
        """Hand a ready partition over to `node`; False when that needs a migration."""
        run, record = self._run, self._run.view.routes[partition]
        epoch = self._epochs.get(partition)
        if epoch is None and not self._may_join(partition, node):
            return False
        if epoch is not None and epoch != record.leader_epoch:
            return False
        if epoch is None and self._room <= 0:
            run.survey.reasons.add(Wait.LIMIT, partition, f"its leader shall move to node {node}")
            return True
        if epoch is None:
            self._room -= 1
            self._epochs[partition] = record.leader_epoch
        run.survey.reasons.add(Wait.SWITCHING, partition, f"its leader moves to node {node}")
        self._authorize(partition, record, node)
        return True

    def settle(self) -> None:
        """Put the batch into the status, which is written before the records are changed."""
        batch = (
            Handover(partition=partition, leader_epoch=epoch)
            for partition, epoch in sorted(self._epochs.items())
        )
        self._run.update(handovers=tuple(batch))
        if self._changes:
            self._run.act(ChangeRoutes(changes=tuple(self._changes)), *self._calls)

    def _is_over(self, partition: PartitionId) -> bool:
        run = self._run
        led = run.view.routes[partition].leader == run.wanted(partition)[0]
        return led or partition in run.children

    def _may_join(self, partition: PartitionId, node: NodeId) -> bool:
        view, record = self._run.view, self._run.view.routes[partition]
        return (
            view.max_concurrent_handovers > 0
            and partition not in self._run.children
            and partition not in self._busy
            and record.next_leader is None
            and view.report(partition, record.leader) is not None
            and not was_copied(view, partition, node)
            and is_close(view, partition, record, node)
        )

    def _authorize(self, partition: PartitionId, record: LeaderAndIsr, node: NodeId) -> None:
        epoch = self._run.view.coordinator_epoch
        change = change_of(partition, record, epoch, *authorization(node))
        if change is None:
            return
        self._changes.append(change)
        leads, by = record.leader, record.leader_epoch
        transfer = LeaderTransfer(self._run.view, partition, leads, node, by, by + 1)
        # Nodes know the records when the call comes; one that does not refuses it.
        self._calls.append(transfer.ask_source())
