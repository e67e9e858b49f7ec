"""What a replica must remember of its partition apart from rows and log.

A journal of JSON records, each of all facts. A change is on the disk before `MetaFile.update`
returns, so epochs, revisions and the failover log can be promised to others afterwards (persist
before act).
"""

from pathlib import Path
from typing import Any

import msgspec

from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.log.journal import Journal
from rezone.wire.codec.schema import IndexId
from rezone.wire.errors import UNREADABLE, CorruptionError
from rezone.wire.messages import FailoverEntry, LeaderAndIsr, NodeId, Role, SnapshotFile
from rezone.wire.typed import from_json


class CopyMeta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a snapshot has been received durably (B-05).

    `offset`, `commit_time`, `leader_epoch` and `failover_log` are those of the copy's *first*
    snapshot, however many it took: the log is followed from there. A copy of files (`format` says
    which) stands at its *last* snapshot: `files` of the engine `engine_id` have come into
    `directory`. A copy of rows makes index entries as they come: of `indexes` (ids) for all rows,
    of `indexes_left` only for some, because they were dropped from the zone meanwhile. `settled`:
    all up to `offset` is known to be committed.
    """

    attempt: str
    snapshot_id: str
    offset: int
    commit_time: int
    leader_epoch: int
    failover_log: tuple[FailoverEntry, ...] = ()
    resume_after: bytes = b""
    rows: int = 0
    bytes: int = 0
    done: bool = False
    format: str = ""
    engine_id: str = ""
    directory: str = ""
    files: tuple[SnapshotFile, ...] = ()
    indexes: tuple[IndexId, ...] = ()
    indexes_left: tuple[IndexId, ...] = ()
    settled: bool = False


class PartitionMeta(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The durable facts of one replica; epochs and revision are the highest ever seen.

    `failover_log` is ordered oldest branch first. `committed_offset` is a hint from some time
    ago: it never exceeds the true one. `resetting` marks a reset that a crash interrupted.
    `proposed` are the nodes that this leader has asked to be in sync and that its record may not
    name: an answer may come after a restart, and then they must have had every write.
    `engine` is the directory of the engine, beside this file. `lease_ms` is the longest promise
    this replica may have made to a leader, `settled_epoch` the last epoch in which it has led
    and knew that no earlier leader has a lease any more; when that is lost, it only waits again.
    `time_floor`: it writes no row with this commit time or an earlier one.
    `serial` counts the records. `damage` says what was found not to match its checksum, until the
    partition has been copied again. `uncompared` is the snapshot that the last copy began with,
    until that copy was compared with its source (B-04).
    """

    partition: int = 0
    zone_uid: str = ""
    engine: str = "engine"
    partition_uuid: str = ""
    failover_log: tuple[FailoverEntry, ...] = ()
    coordinator_epoch: int = 0
    leader_epoch: int = 0
    partition_epoch: int = 0
    revision: int = 0
    role: Role | None = None
    leader_and_isr: LeaderAndIsr | None = None
    proposed: tuple[NodeId, ...] = ()
    committed_offset: int = 0
    lease_ms: int = 0
    settled_epoch: int = 0
    time_floor: int = 0
    copy: CopyMeta | None = None
    needs_snapshot: bool = False
    resetting: bool = False
    serial: int = 0
    damage: str = ""
    uncompared: str = ""


JOURNAL_NAME = "meta.journal"


class MetaFile:
    """The file in `directory` that holds a PartitionMeta; the caller keeps updates apart."""

    def __init__(
        self, directory: Path, initial: PartitionMeta, sync_times: SyncTimes | None = None
    ) -> None:
        self._journal = Journal(directory / JOURNAL_NAME, sync_times=sync_times)
        self._unsaved = False
        self.saved_serial = 0
        self.value = initial
        if self._journal.newest is not None:
            self.value = _decoded(directory / JOURNAL_NAME, self._journal.newest)

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return whether a replica's facts are in a directory."""
        return (directory / JOURNAL_NAME).exists()

    def begin_again(self) -> None:
        """Have the next change write another file: of this one it is not known what is durable."""
        self._journal.begin_again()
        self._unsaved = True

    def update(self, *, durable: bool = True, **changes: Any) -> PartitionMeta:
        """Change fields, durably before this returns; equal values cost nothing.

        Without `durable` they reach the disk with the next change that is.
        """
        changed = msgspec.structs.replace(self.value, **changes)
        if not durable:
            self._unsaved = self._unsaved or changed != self.value
            self.value = changed
            return changed
        if changed == self.value and not self._unsaved and self._journal.newest is not None:
            return self.value
        changed = msgspec.structs.replace(changed, serial=changed.serial + 1)
        self._journal.write(msgspec.json.encode(changed))
        self.value, self._unsaved = changed, False
        self.saved_serial = changed.serial
        return changed


def _decoded(path: Path, data: bytes) -> PartitionMeta:
    try:
        return from_json(data, PartitionMeta)
    except UNREADABLE as error:
        raise CorruptionError(f"{path}: {error}") from error


def branch_end(failover_log: tuple[FailoverEntry, ...], uuid: str, log_end: int) -> int | None:
    """Return the offset at which a branch of history ends here; None when it is unknown (DCP-05).

    A consumer on that branch above the returned offset must roll back to it.
    """
    for index, entry in enumerate(failover_log):
        if entry.partition_uuid == uuid:
            following = failover_log[index + 1 :]
            return following[0].first_offset if following else log_end
    return None


def branches_until(
    failover_log: tuple[FailoverEntry, ...], offset: int
) -> tuple[FailoverEntry, ...]:
    """Return the branches that began at or before `offset`: the history of a state at it."""
    return tuple(entry for entry in failover_log if entry.first_offset <= offset)
