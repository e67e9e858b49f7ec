"""All that a data node has said, put together from its reports, and what of it is new.

A report tells what has changed since the version that the coordinator knew when it asked. It
counts only on top of exactly that version of the same process; after anything else, a lost answer
or a restart on either side, the node is asked for the whole report again.

What is heard is never changed but replaced, so decisions may keep looking at what they began with.
"""

import dataclasses
from collections.abc import Mapping

from rezone.controller.nodes.report_delta import EVERYTHING, ReportDelta, has_changed
from rezone.wire.messages import (
    DiskTrouble,
    NodeId,
    NodeReport,
    PartitionId,
    ReplicaReport,
    ReportRequest,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeState:
    """What a data node has said up to `version` of its process's report.

    `zone_uid` is empty before it was given a zone. `hears`: the peers it exchanges frames with,
    None when it does not say. `served_percent`: for how much of the time it served clients when it
    said so, None when it does not. `overwrite` is the one that a driver asks it for;
    `overwrite_silent`: none has asked it for long.
    """

    process_id: str
    zone_uid: str
    version: int
    coordinator_epoch: int
    leaving: bool
    disk: DiskTrouble = DiskTrouble.NONE
    disk_text: str = ""
    clock_off: bool = False
    clock_text: str = ""
    hears: frozenset[NodeId] | None = None
    sync_ms: int = 0
    slow_ms: int = 0
    served_percent: int | None = None
    overwrite: str = ""
    overwrite_silent: bool = False
    replicas: Mapping[PartitionId, ReplicaReport]


def request_after(node_state: NodeState | None, timeout_ms: int) -> ReportRequest:
    """Return the poll of somebody who has heard so much: for what is new, or for all."""
    if node_state is None:
        return ReportRequest(timeout_ms=timeout_ms)
    return ReportRequest(
        seen=node_state.version, process_id=node_state.process_id, timeout_ms=timeout_ms
    )


def follows(before: NodeState | None, answer: NodeReport) -> bool:
    """Return whether a report can be put on top of what was heard before."""
    if answer.since == 0:
        return True
    known = (before.process_id, before.version) if before is not None else None
    return known == (answer.process_id, answer.since)


def with_answer(before: NodeState | None, answer: NodeReport) -> NodeState:
    """Return what is known with a report that `follows`."""
    replicas = dict(before.replicas) if before is not None and answer.since else {}
    replicas.update((each.partition, each) for each in answer.replicas)
    for partition in answer.gone:
        replicas.pop(partition, None)
    return NodeState(
        process_id=answer.process_id,
        zone_uid=answer.zone_uid,
        version=answer.version,
        coordinator_epoch=answer.coordinator_epoch,
        leaving=answer.leaving,
        disk=answer.disk,
        disk_text=answer.disk_text,
        clock_off=answer.clock_off,
        clock_text=answer.clock_text,
        hears=frozenset(answer.hears) if answer.hears is not None else None,
        sync_ms=answer.sync_ms,
        slow_ms=answer.slow_ms,
        served_percent=answer.served_percent,
        overwrite=answer.overwrite,
        overwrite_silent=answer.overwrite_silent,
        replicas=replicas,
    )


def delta_of(before: NodeState, after: NodeState) -> ReportDelta | None:
    """Return what is new in what a node says; None when it says the same."""
    if before.process_id != after.process_id or before.zone_uid != after.zone_uid:
        return EVERYTHING
    if (before.leaving, before.disk, before.hears) != (after.leaving, after.disk, after.hears):
        return EVERYTHING
    asked = (before.overwrite, before.overwrite_silent)
    if before.clock_text != after.clock_text or asked != (after.overwrite, after.overwrite_silent):
        return EVERYTHING
    if bool(before.slow_ms) != bool(after.slow_ms):
        return EVERYTHING
    old, new = before.replicas, after.replicas
    # Most of a node's replicas are the very same objects: only the others are looked into.
    different = [p for p, replica in new.items() if old.get(p) is not replica]
    different = [p for p in different if old.get(p) != new[p]]
    if not different and old.keys() == new.keys():
        return None
    changed = old.keys() ^ new.keys()
    changed |= {p for p in different if p in old and has_changed(old[p], new[p])}
    return ReportDelta(frozenset(changed), progress=True)
