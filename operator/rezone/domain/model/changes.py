"""Several steps of `routes` as one change of a record: one write, one partition epoch."""

from collections.abc import Callable

import msgspec

from rezone.domain.model.world import RouteChange, StopReplica
from rezone.domain.routing import route_checks, routes
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId

Step = Callable[[LeaderAndIsr], routes.Answer]


def combine(record: LeaderAndIsr, coordinator_epoch: int, *steps: Step) -> routes.Answer:
    """Return the record after all steps, one partition epoch on; itself when none changes it.

    The first refusal is the answer for all of them.
    """
    after = record
    for step in steps:
        answer = step(after)
        if isinstance(answer, routes.Refusal):
            return answer
        after = answer
    if after is record:
        return record
    if coordinator_epoch < record.coordinator_epoch:
        return routes.Refusal(
            routes.RefusalReason.COORDINATOR_FENCED,
            f"coordinator epoch {coordinator_epoch} is over, the record has "
            f"{record.coordinator_epoch}",
        )
    after = msgspec.structs.replace(
        after,
        partition_epoch=record.partition_epoch + 1,
        coordinator_epoch=coordinator_epoch,
    )
    wrong = (*route_checks.violations(after), *route_checks.regressions(record, after))
    if wrong:
        raise AssertionError(f"a change would break a route: {'; '.join(wrong)}")
    return after


def change_of(
    partition: PartitionId,
    record: LeaderAndIsr,
    coordinator_epoch: int,
    *steps: Step,
) -> RouteChange | None:
    """Return the change that these steps come to, None when there is none or it is refused."""
    after = combine(record, coordinator_epoch, *steps)
    if after is record or isinstance(after, routes.Refusal):
        return None
    return RouteChange(partition=partition, expected_epoch=record.partition_epoch, state=after)


def stop_of(partition: PartitionId, node: NodeId, record: LeaderAndIsr) -> StopReplica:
    """Return what stops a replica that the record does not name."""
    return StopReplica(
        partition=partition,
        node=node,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
    )


def drop_from_isr(node: NodeId, minimum: int) -> Step:
    """Return the step after which a node that is gone is no longer waited for; it stays a replica.

    Only for a node that no longer leads: its successor has fenced it. `minimum` is the zone's
    smallest in-sync set.
    """

    def step(record: LeaderAndIsr) -> routes.Answer:
        return routes.drop_from_isr(record, (node,), minimum=minimum)

    return step
