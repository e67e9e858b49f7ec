"""What must hold of every LeaderAndIsr record, and between a record and a later one.

For assertions: tests, the simulator and paired checks at write and read. Nothing is decided here.
"""

from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr


def violations(record: LeaderAndIsr) -> tuple[str, ...]:
    """Return what is wrong with a record, in words; empty when nothing is."""
    found = []
    for name in ("replicas", "isr", "iss", "eligible"):
        nodes = getattr(record, name)
        if len(set(nodes)) != len(nodes):
            found.append(f"{name} names a node twice: {list(nodes)}")
    if record.leader not in record.isr:
        found.append(f"leader {record.leader} is not in isr {list(record.isr)}")
    if not set(record.isr) <= set(record.replicas):
        found.append(f"isr {list(record.isr)} is not within replicas {list(record.replicas)}")
    if not set(record.iss) <= set(record.isr):
        found.append(f"iss {list(record.iss)} is not within isr {list(record.isr)}")
    if not set(record.eligible) <= set(record.replicas) - set(record.isr):
        found.append(f"eligible {list(record.eligible)} is not within replicas without isr")
    hot = record.hot_standby_replica
    if hot is not None and hot not in record.replicas:
        found.append(f"hot standby {hot} is not a replica")
    if record.sealing and (record.sealed or record.next_leader is not None):
        found.append("sealing, and sealed or about to be taken over")
    return (*found, *_takeover_violations(record))


def _takeover_violations(record: LeaderAndIsr) -> list[str]:
    if record.next_leader is None and record.next_epoch is None:
        return []
    if record.next_leader is None or record.next_epoch is None:
        return ["next_leader and next_epoch are not set together"]
    found = []
    if record.next_leader not in record.isr or record.next_leader == record.leader:
        found.append(f"next_leader {record.next_leader} is not an in-sync follower")
    if record.next_epoch <= record.leader_epoch:
        found.append(f"next_epoch {record.next_epoch} is not above {record.leader_epoch}")
    return found


def begins_again(before: LeaderAndIsr, after: LeaderAndIsr) -> bool:
    """Return whether a record is the first one of a partition that begins again after another."""
    first = after.partition_epoch == FIRST_PARTITION_EPOCH <= before.partition_epoch
    return first and after.leader_epoch > before.leader_epoch


def regressions(before: LeaderAndIsr, after: LeaderAndIsr) -> tuple[str, ...]:
    """Return what went backwards from one record to a later one, in words.

    The partition epoch of one that begins again is the first one again (`routes.begin_again`).
    """
    names = ["leader_epoch", "coordinator_epoch"]
    if not begins_again(before, after):
        names.append("partition_epoch")
    found = [
        f"{name} fell from {getattr(before, name)} to {getattr(after, name)}"
        for name in names
        if getattr(after, name) < getattr(before, name)
    ]
    if before.sealed and not after.sealed:
        found.append("a sealed partition is not sealed any more")
    if after.leader != before.leader and after.leader_epoch <= before.leader_epoch:
        found.append(f"leader {after.leader} has no higher epoch than leader {before.leader}")
    return tuple(found)
