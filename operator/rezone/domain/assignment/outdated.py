"""Objects that have gone back in time: data nodes know later facts than the API server (NW-06).

A coordinator writes a record before it tells data nodes of it, and raises its epoch and revisions
there first. So nobody can know a later one than is stored, unless the store was put back to an
earlier state, as by a restore of etcd from a backup. Data nodes persist what they were told: the
facts are taken back from them, or nothing is done while they cannot be known.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rezone.domain.assignment import assignments
from rezone.domain.model.world import RouteChange
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import REPLICAS_MAX, Topology
from rezone.resources.zone_status import Assignment, Assignments
from rezone.wire.layouts import Layout, generation_of, index_of, layout_of, next_layout_of
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    LeaderAndIsr,
    NodeId,
    PartitionId,
    ReplicaReport,
    Role,
    SealState,
    ZoneConfig,
)

Replicas = Mapping[NodeId, Mapping[PartitionId, ReplicaReport]]
"""What each data node that answers says of its replicas."""
Told = Mapping[PartitionId, Sequence[LeaderAndIsr]]
"""The records that data nodes tell."""


def is_later(report: ReplicaReport, record: LeaderAndIsr) -> bool:
    """Return whether a replica knows a later record than this one.

    A leader that hands over by itself leads with the epoch that its record has authorized.
    """
    if report.leader_epoch > max(record.leader_epoch, record.next_epoch or 0):
        return True
    # What is of a leader epoch before may be of a partition that has begun again since.
    same = report.leader_epoch >= record.leader_epoch
    return same and report.partition_epoch > record.partition_epoch


def known_later(routes: RouteRecords, replicas: Replicas) -> frozenset[PartitionId]:
    """Return the partitions of which some replica knows a later record."""
    records = dict(routes.items())
    return frozenset(
        partition
        for reports in replicas.values()
        for partition, report in reports.items()
        # A pass asks this of each replica: most are told apart without a call.
        if (record := records.get(partition)) is not None
        and (
            report.leader_epoch > record.leader_epoch
            or report.partition_epoch > record.partition_epoch
        )
        and is_later(report, record)
    )


def unknown_layout(keys: Assignments, routes: RouteRecords, replicas: Replicas) -> int | None:
    """Return the generation of a layout that replicas are of and the objects do not know.

    The zone was re-sharded after the backup. None when there is none. Either no assignment has ever
    had it (the records count, too: they are learned before the keys are), or it is pending, and the
    backup was made before its records were: replicas are told of it only after that. Or it is the
    stable one, and somebody has deleted its records.
    """
    held = {generation_of(p) for reports in replicas.values() for p in reports}
    known = {each.generation for each in routes.layouts}
    newest = max((*held, *known), default=0)
    if newest > keys.last_layout_version:
        return newest
    if keys.stable is not None and keys.stable.layout_version in held - known:
        return keys.stable.layout_version
    pending = keys.pending
    if pending is None or keys.cancel is not None or not assignments.is_resharding(keys):
        return None
    return pending.layout_version if pending.layout_version in held - known else None


def with_revision(keys: Assignments, replicas: Replicas) -> Assignments:
    """Return the keys with an offset by which calls carry later revisions than replicas know."""
    known = max((r.revision for reports in replicas.values() for r in reports.values()), default=0)
    behind = known - assignments.acting_revision(keys)
    if behind <= 0:
        return keys
    return keys.model_copy(update={"revision_offset": keys.revision_offset + behind + 1})


def with_stable(keys: Assignments, routes: RouteRecords) -> Assignments:
    """Return the keys with `stable` as the routes say, where nothing is pending.

    What is pending is followed by its task, which looks at the routes. The revision is a new one:
    what was planned on the forgotten assignment is stale.
    """
    stable = keys.stable
    if stable is None or keys.pending is not None:
        return keys
    topology = _nodes(routes.of(stable.layout_version))
    revision = keys.change + 1
    moved = stable.model_copy(
        update={"revision": revision, "replicas": assignments.compact(topology)}
    )
    return keys.model_copy(update={"stable": moved, "change": revision})


def latest_of(
    routes: RouteRecords, later: Iterable[PartitionId], told: Told
) -> dict[PartitionId, LeaderAndIsr]:
    """Return the latest records that are known of partitions that are outdated."""
    return {p: max((routes[p], *told.get(p, ())), key=_age) for p in sorted(later)}


def served_layout(generation: int, configs: Iterable[ZoneConfig], told: Told) -> Layout | None:
    """Return the layout of a generation when it serves all rows, None when none is known to.

    Data nodes know no other, or the partitions of the one before have cut over, all of them.
    """
    for config in configs:
        old, new = layout_of(config), next_layout_of(config)
        if old.generation == generation:
            return old
        is_next = new is not None and new.generation == generation
        if is_next and all(any(each.sealed for each in told.get(p, ())) for p in old.ids):
            return new
    return None


def is_cancelled(
    generation: int, configs: Sequence[ZoneConfig], routes: RouteRecords, replicas: Replicas
) -> bool:
    """Return whether a re-sharding that left replicas behind was cancelled, for sure.

    A coordinator takes a layout out of what data nodes are told when no old partition has sealed,
    nor can; all that answer must have been told so, and every old leader must say so once more.
    """
    if len(configs) < len(replicas) or generation in {each.generation for each in routes.layouts}:
        return False
    if any(layout_of(c).generation >= generation or next_layout_of(c) for c in configs):
        return False
    return all(_is_unsealed(partition, replicas) for partition in routes)


def _is_unsealed(partition: PartitionId, replicas: Replicas) -> bool:
    found = [reports[partition] for reports in replicas.values() if partition in reports]
    latest = max((report.leader_epoch for report in found), default=0)
    return any(
        report.role is Role.LEADER
        and report.leader_epoch == latest
        and report.seal is SealState.NONE
        for report in found
    )


def has_lost_records(keys: Assignments, generation: int) -> bool:
    """Return whether an unknown layout is the stable one: the keys are current, its records gone.

    It is learned as it is: nothing was forgotten but what data nodes were told.
    """
    return keys.stable is not None and keys.stable.layout_version == generation


def layout_to_learn(
    keys: Assignments,
    generation: int,
    configs: Sequence[ZoneConfig],
    routes: RouteRecords,
    told: Told,
) -> tuple[Layout, bool] | str:
    """Return the layout of a generation, and whether it serves all rows, or why it is not learned.

    One that does not yet must come from the layout that the objects know.
    """
    if has_lost_records(keys, generation):
        stable = served_layout(generation, configs, told)
        if routes or stable is None:
            return "delete its next layout's records, too" if routes else "nobody knows its size"
        return stable, True
    resumed = keys.pending is not None and keys.pending.layout_version == generation
    served = None if resumed else served_layout(generation, configs, told)
    layout = served or _unfinished(generation, configs, routes)
    if keys.pending is not None and not (resumed and layout is not None):
        return "and the objects are those of a rebalance that is under way"
    if layout is None:
        return "the re-sharding to it has not ended, and comes from a layout that no object names"
    return layout, served is not None


def _unfinished(
    generation: int, configs: Sequence[ZoneConfig], routes: RouteRecords
) -> Layout | None:
    for config in configs:
        new = next_layout_of(config)
        if new is not None and new.generation == generation and layout_of(config) == routes.layout:
            return new
    return None


def learned(
    routes: RouteRecords,
    latest: Mapping[PartitionId, LeaderAndIsr],
    replicas: Replicas,
    *,
    minimum: int,
    coordinator_epoch: int,
) -> tuple[RouteChange, ...] | str:
    """Return the changes that take the latest records over, or why they cannot be known yet.

    Some replicas of a record may be missing: their data nodes are silent, or came back empty,
    because the backup knows neither pod nor volume of them. While they are fewer than `minimum`,
    the zone's `minInSyncReplicas`, one that answers has every acknowledged row. Else those that
    are silent are waited for, and of those that are empty a person must know (`lost_quorum`).
    """
    changes = []
    for partition, record in latest.items():
        stored, name = routes[partition], routes.name_of(partition)
        if record is stored:
            return f"{name}: nobody tells its record"
        state = _taken_over(name, partition, record, replicas, minimum)
        if isinstance(state, str):
            return state
        state = msgspec.structs.replace(
            state,
            partition_epoch=max(record.partition_epoch, stored.partition_epoch) + 1,
            coordinator_epoch=coordinator_epoch,
        )
        changes.append(
            RouteChange(
                partition=partition,
                expected_epoch=stored.partition_epoch,
                state=state,
                learned=True,
            )
        )
    return tuple(changes)


def learned_layout(
    layout: Layout,
    told: Told,
    replicas: Replicas,
    *,
    minimum: int,
    coordinator_epoch: int,
) -> tuple[LeaderAndIsr, ...] | str:
    """Return the records of a layout that the objects do not know, by index, or why not yet."""
    found = []
    for partition in layout.ids:
        name = f"partition {index_of(partition)}"
        record = max(told.get(partition, ()), key=_age, default=None)
        if record is None:
            return f"{name}: nobody tells its record"
        state = _taken_over(name, partition, record, replicas, minimum)
        if isinstance(state, str):
            return state
        if record.partition_epoch == FIRST_PARTITION_EPOCH:
            # It has no rows before all of its replicas are open, and a later epoch says they are.
            if silent := sorted(n for n in record.replicas if n not in replicas):
                return f"{name} waits for data nodes {silent}"
            found.append(msgspec.structs.replace(record, coordinator_epoch=coordinator_epoch))
            continue
        found.append(
            msgspec.structs.replace(
                state,
                partition_epoch=record.partition_epoch + 1,
                coordinator_epoch=coordinator_epoch,
            )
        )
    return tuple(found)


def with_layout(
    keys: Assignments, generation: int, records: Sequence[LeaderAndIsr], replicas: Replicas
) -> Assignments:
    """Return the keys of a zone whose layout is another one now; nothing may be pending.

    Those whose stable layout has lost its records come back with their assignments as they are.
    """
    if has_lost_records(keys, generation):
        return with_revision(keys, replicas)
    moved = keys.stable.model_copy(update={"layout_version": generation}) if keys.stable else None
    keys = keys.model_copy(update={"stable": moved, "last_layout_version": generation})
    return with_stable(with_revision(keys, replicas), RouteRecords(records, generation))


def with_pending(
    keys: Assignments, generation: int, records: Sequence[LeaderAndIsr], replicas: Replicas
) -> Assignments:
    """Return the keys of a zone that is re-sharded to a layout with these records.

    Keys by which it is so already come back with their assignments as they are.
    """
    if keys.pending is None:
        revision = keys.change + 1
        pending = Assignment(
            revision=revision,
            replicas=assignments.compact(_nodes(records)),
            layout_version=generation,
        )
        keys = keys.model_copy(
            update={"pending": pending, "change": revision, "last_layout_version": generation}
        )
    return with_revision(keys, replicas)


def _nodes(records: Iterable[LeaderAndIsr]) -> Topology:
    return tuple(
        tuple(dict.fromkeys((record.leader, *record.isr, *record.replicas)))[:REPLICAS_MAX]
        for record in records
    )


def _taken_over(
    name: str,
    partition: PartitionId,
    record: LeaderAndIsr,
    replicas: Replicas,
    minimum: int,
) -> LeaderAndIsr | str:
    """Return a partition's latest record as it may be acted on, or why it may not yet."""
    there = {n: replicas.get(n, {}).get(partition) for n in record.replicas}
    answers = {n: report for n, report in there.items() if report is not None}
    if any(is_later(report, record) for report in answers.values()):
        return f"{name}: a later record is known than was told"
    lost = {n for n in record.isr if n in answers and answers[n].needs_snapshot}
    missing = tuple(n for n in record.replicas if n not in answers or n in lost)
    silent = sorted(n for n in missing if n not in replicas)
    if len(missing) >= minimum and silent:
        return f"{name} waits for data nodes {silent}"
    return _without(record, missing, answers, minimum)


def _without(
    record: LeaderAndIsr,
    missing: Sequence[NodeId],
    answers: Mapping[NodeId, ReplicaReport],
    minimum: int,
) -> LeaderAndIsr:
    """Return a record by which only those may lead who have every acknowledged row for sure.

    A leader that answers vouches for its set. One that does not may have made the set smaller, and
    been told so alone: then the longest logs have everything that was acknowledged. When too many
    are missing for that, nobody has who answers, and the record says so.
    """
    if len(missing) >= minimum:
        epoch = max(record.leader_epoch, record.next_epoch or 0) + 1
        return LeaderAndIsr(
            leader=missing[0],
            leader_epoch=epoch,
            isr=tuple(missing),
            coordinator_epoch=record.coordinator_epoch,
            replicas=record.replicas,
        )
    if record.leader not in missing:
        return record
    ends = {n: (r.last_epoch, r.durable_offset) for n, r in answers.items() if not r.needs_snapshot}
    best = max(ends.values(), default=None)
    isr = (record.leader, *(n for n, end in ends.items() if end == best))
    iss = tuple(n for n in record.iss if n in isr)
    return msgspec.structs.replace(record, isr=isr, iss=iss, eligible=())


def _age(record: LeaderAndIsr) -> tuple[int, int]:
    return record.leader_epoch, record.partition_epoch
