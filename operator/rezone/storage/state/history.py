"""Histories of a partition: which branch a log's end is on, and where two logs part (DCP-03..05).

The failover log names each branch of history and its first offset. Every leadership begins a
branch, a restarted leader's too: what was streamed from it and lost with it is nobody's history.

Pure functions, safe from any thread.
"""

from rezone.storage.state.meta import branch_end
from rezone.wire.messages import FailoverEntry, IndexPosition

FAILOVER_LOG_MAX = 64


def branch_at(failover_log: tuple[FailoverEntry, ...], offset: int) -> str:
    """Return the branch that the last row below `offset` belongs to; empty at offset 0."""
    uuid = ""
    for entry in failover_log:
        if entry.first_offset < offset:
            uuid = entry.partition_uuid
    return uuid


def is_of_history(failover_log: tuple[FailoverEntry, ...], at: IndexPosition) -> bool:
    """Return whether an index's position is of this history: its rows are this one's (DCP-08)."""
    return branch_at(failover_log, at.offset) == at.partition_uuid


def branch_start(failover_log: tuple[FailoverEntry, ...], log_end: int) -> int:
    """Return where the branch of the last row below `log_end` begins; 0 without branches."""
    starts = (entry.first_offset for entry in failover_log if entry.first_offset < log_end)
    return max(starts, default=0)


def rollback_offset(
    failover_log: tuple[FailoverEntry, ...],
    log_end: int,
    high_offset: int,
    partition_uuid: str,
) -> int | None:
    """Return to where a consumer must roll back (DCP-05); None when its log is part of this one."""
    if high_offset == 0:
        return None
    end = branch_end(failover_log, partition_uuid, log_end)
    if end is None:
        return 0
    return None if high_offset <= end else end


def with_new_branch(
    failover_log: tuple[FailoverEntry, ...], log_end: int, partition_uuid: str
) -> tuple[FailoverEntry, ...]:
    """Return the failover log with a new branch of history of this name from `log_end` on.

    A branch without rows is replaced: no consumer can have rows of it. The oldest branches go
    when there are too many; who is that far behind is rolled back to the start.
    """
    kept = [entry for entry in failover_log if entry.first_offset < log_end]
    branch = FailoverEntry(partition_uuid, log_end)
    return (*kept[-(FAILOVER_LOG_MAX - 1) :], branch)
