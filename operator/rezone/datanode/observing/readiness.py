"""Whether a data node's pod is Ready: all its replicas are open and in sync.

Disruption budgets count Ready pods. A pod that lags therefore keeps the others from being
evicted, until every partition has its replicas in sync again.

The node judges by itself, from the records it was told and its streams: a pod that restarts while
the operator is away becomes Ready, or does not, all the same. A replica that lags is held against
the node only when its partition is short of in-sync replicas: a copy that a rebalance makes in
addition is counted on by nobody yet. Nothing is routed by readiness: peers and clients go by the
route table, and find pods that are not ready by the zone's Service too.
"""

from rezone.datanode.node.node import DataNode
from rezone.datanode.replica.replica import Replica
from rezone.wire import layouts


def unready_reason(node: DataNode) -> str:
    """Return why the node's pod is not Ready, "" when it is."""
    if not node.zone.configured:
        return "not configured: the operator has not told it its zone yet"
    if node.leaving or node.stopping:
        return "leaving: told to stop"
    if stalled := node.disk_speed.stalled_seconds:
        return f"the disk stalls: a sync is under way for {stalled:.0f} s"
    partitions = [p for p in node.partitions() if layouts.is_known(node.config, p.partition_id)]
    reasons = [text for p in partitions if (text := _lag_of(node, p))]
    if not reasons:
        return ""
    return f"{len(reasons)} of {len(partitions)} replicas lag: {reasons[0]}"


def _lag_of(node: DataNode, replica: Replica) -> str:
    number, record = replica.partition_id, replica.record
    if replica.failure:
        return f"partition {number} has failed: {replica.failure}"
    if replica.leads:
        return ""
    if node.node_id in record.isr:
        # The record may be older than the stream: then the leader knows better.
        if replica.following.left_out:
            return f"partition {number} is not in sync"
        streaming = node.links.streaming(number)
        return "" if streaming else f"partition {number} has no stream from node {record.leader}"
    if node.node_id not in record.replicas or len(record.isr) >= node.config.replicas:
        return ""
    return f"partition {number} is not in sync"
