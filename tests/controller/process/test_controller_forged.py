"""Without TLS anybody may name the operator's numbers; the operator goes above, and goes on."""

from __future__ import annotations

import time

import msgspec
import pytest
from operated_cluster import (
    TestCluster,
    addresses_of,
    fail_over,
    is_ready,
    make_zone,
    records_of,
    remove_zone,
    until_records,
    until_zone,
)
from operator_process import OperatorProcess

from rezone.controller.process.main import EXIT_EPOCH_USED
from rezone.datanode.service.epoch_bounds import CHANGES, LEADERS
from rezone.local.api import KubeApi
from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import Ack, Fence, NotifyLeaderAndIsr, PartitionAssignment
from rezone.wire.transport.flight import NodeClient

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.proves("TR-03"),
]

NAMESPACE = "forged"
ZONE = "open"
NODES = ("worker-1", "worker-2", "worker-3")
OPERATOR = {"REZONE_LEASE_DURATION_SECONDS": "15"}
"""This is not about a Lease that is lost on a busy machine."""


@pytest.mark.long
async def test_the_operator_goes_on_after_the_highest_numbers_were_forged(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """One data node is told the highest numbers that it takes, as by a later operator.

    The operator would be refused by that node for ever, and no partition be led elsewhere. It ends,
    is started again with an epoch above, and takes the record over.
    """
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, NODES)
    records = await records_of(api, NAMESPACE, ZONE)
    addresses = addresses_of(zone)
    victim = next(iter(addresses))
    held = next(p for p, record in records.items() if victim in record.isr)
    now = time.time_ns() // 1000
    epoch = LEADERS.at(now)
    forged = msgspec.structs.replace(
        records[held],
        leader_epoch=epoch,
        partition_epoch=CHANGES.at(now),
        coordinator_epoch=epoch,
    )
    client = NodeClient(addresses[victim])

    def notify(coordinator_epoch: int, revision: int, *partitions: PartitionAssignment) -> None:
        fence = Fence(coordinator_epoch=coordinator_epoch, revision=revision)
        client.call(NotifyLeaderAndIsr(fence=fence, peers={}, partitions=partitions), Ack)

    notify(epoch, CHANGES.at(now), PartitionAssignment(partition=held, state=forged))
    with pytest.raises(ForbiddenError, match="too high"):
        notify((1 << 63) - 1, 1)
    client.close()

    await until_records(api, NAMESPACE, ZONE, lambda found: found[held].leader_epoch >= epoch)
    await until_zone(api, NAMESPACE, ZONE, is_ready)
    await fail_over(cluster, api, NAMESPACE, ZONE)
    await until_zone(api, NAMESPACE, ZONE, is_ready)
    await operator.until_ready()
    assert EXIT_EPOCH_USED in operator.ended, "it has gone on with an epoch that it does not have"
    operator.ended.clear()
    await remove_zone(api, NAMESPACE, ZONE)
