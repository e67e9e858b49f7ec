"""The sending half of a partition's copies: which form a snapshot takes, and where it stands.

A snapshot goes out as rows (`snapshot`) or as engine files (`checkpoints`); both begin with a
header that says at which offset they stand, and what the receiver needs beside the rows: the
history, the producers, the open transactions.

Concurrency: thread-safe. A snapshot is opened under the partition's condition, one of files under
the applier's mutex, too, so that nothing is applied between its header and its rows.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from rezone.storage.applier import AppliedState, Applier
from rezone.storage.index.indexer import Indexer
from rezone.storage.log.log import PartitionLog
from rezone.storage.reshard.reshard_table import ReshardTable
from rezone.storage.snapshot.checkpoints import Checkpoints, FileSnapshot
from rezone.storage.snapshot.snapshot import Snapshots, SnapshotSource
from rezone.storage.state.history import branch_at
from rezone.storage.state.meta import branches_until
from rezone.storage.state.producers import ProducerTable
from rezone.storage.state.seal import LogSeal
from rezone.storage.store_config import StoreConfig
from rezone.storage.transactions.transactions import TransactionTable
from rezone.wire.errors import SnapshotExpiredError
from rezone.wire.messages import (
    FailoverEntry,
    HeldFiles,
    ReshardBegun,
    ReshardPosition,
    SnapshotHeader,
    SnapshotTicket,
)

_log = structlog.get_logger(__name__)


class Outgoing:
    """What a partition's store does to be copied.

    `history` is its failover log of the day, `committed` up to where its log is committed.
    """

    def __init__(
        self,
        directory: Path,
        config: StoreConfig,
        *,
        applier: Applier,
        log: PartitionLog,
        snapshots: Snapshots,
        producers: ProducerTable,
        transactions: TransactionTable,
        reshard_table: ReshardTable,
        seal: LogSeal,
        indexer: Indexer,
        changed: threading.Condition,
        history: Callable[[], tuple[FailoverEntry, ...]],
        committed: Callable[[], int],
    ) -> None:
        self._config = config
        self._applier = applier
        self._log = log
        self._snapshots = snapshots
        self._producers = producers
        self._transactions = transactions
        self._reshard_table = reshard_table
        self._seal = seal
        self._indexer = indexer
        self._changed = changed
        self._history = history
        self._committed = committed
        self._checkpoints = Checkpoints(directory / "checkpoints", config.checkpoints, config.clock)

    def open(self, ticket: SnapshotTicket) -> SnapshotSource | FileSnapshot:
        """Open a snapshot in the form that suits all its receivers.

        Files, when they can open those of this engine and the partition is worth it; else rows.
        """
        engine = self._applier.engine
        large = engine.bytes_estimate() >= self._config.checkpoints.bytes_min
        if engine.file_format and engine.file_format in ticket.formats and large:
            try:
                return self.open_files(ticket.held, ticket.batch_bytes)
            except OSError as error:
                _log.warning("no file snapshot, rows instead", error=str(error))
        return self.open_rows(ticket.reader, ticket.resume_after, ticket.batch_bytes)

    def open_rows(
        self,
        reader: str,
        resume_after: bytes = b"",
        batch_bytes: int = 2 << 20,
        *,
        end_row_id: bytes | None = None,
    ) -> SnapshotSource:
        """Open a snapshot of the applied state, rows after `resume_after` (SS-01..03, SS-06).

        `end_row_id` bounds it to a range of rows, for a copy of a part of the partition.
        """
        with self._changed:
            # An entry that is half applied belongs to no offset: wait for its end.
            while self._applier.mid_entry:
                self._changed.wait(0.1)
            return self._snapshots.open(
                self._applier.engine,
                lambda snapshot_id: self._header(snapshot_id, resume_after),
                reader=reader,
                after=resume_after,
                end=end_row_id,
                batch_bytes=batch_bytes,
            )

    def open_files(self, held: HeldFiles | None = None, chunk_bytes: int = 2 << 20) -> FileSnapshot:
        """Open a file snapshot of the applied state, of what is not `held` (HS-07, SS-06).

        OSError when the file system makes no links.
        """
        found = self._checkpoints.reopen(held, chunk_bytes)
        if found is not None:
            return found
        self._indexer.catch_up()
        # Most of it while everything else goes on.
        self._applier.engine.flush()
        with self._applier.mutex, self._changed:
            # The files bring the index along: it must stand where they do, for no log is sent.
            self._indexer.catch_up()
            engine = self._applier.engine
            engine.flush()
            header = self._header(self._config.new_id())
            return self._checkpoints.make(engine, header, held, chunk_bytes)

    def _header(self, snapshot_id: str, resume_after: bytes = b"") -> SnapshotHeader:
        state = self._applier.state
        return SnapshotHeader(
            snapshot_id=snapshot_id,
            offset=state.offset,
            commit_time=state.commit_time,
            leader_epoch=state.leader_epoch,
            failover_log=branches_until(self._history(), state.offset),
            producers=self._producers.export(),
            transactions=self._transactions.export(state.offset),
            reshard_positions=self._reshard_table.export(),
            seal=self._seal.export(),
            rows_estimate=self._indexer.versions_estimate(),
            resume_after=resume_after,
            settled=state.offset <= self._committed(),
        )

    def begin_reshard(
        self, since: int | None = None, bytes_max: int = 0, floor: int | None = None
    ) -> ReshardBegun:
        """Return from where the log is to be followed by who pulls this partition's rows.

        It is where the applied state stands; so that must be committed. Or further back, up to
        where the first change later than `since` begins, as far as the log goes without more than
        about `bytes_max`: what is pulled twice, by a backfill as well, makes the same versions.
        And not behind `floor`, from which named feeds need the log.
        """
        with self._changed:
            while self._applier.mid_entry:
                self._changed.wait(0.1)
            applied = self._applier.state
            sealed = self._seal.export() is not None
            wanted = since is not None or floor is not None
            state = applied
            if wanted:
                state = self._stand_before(since, bytes_max, floor)
            position = ReshardPosition(
                source=self._config.partition,
                offset=state.offset,
                commit_time=state.commit_time,
                partition_uuid=branch_at(self._history(), state.offset),
                leader_epoch=state.leader_epoch,
                backfilling=True,
                # Else the seal comes with the rest of the log.
                sealed_at=state.offset if sealed and state == applied else 0,
            )
            return ReshardBegun(
                position=position,
                producers=self._producers.export(),
                # How later ones have ended is told by their entries.
                transactions=self._transactions.ended(state.offset),
            )

    def _stand_before(self, since: int | None, bytes_max: int, floor: int | None) -> AppliedState:
        """Return how the log stood before what is later than `since`; under the condition.

        Not before all was here that this partition has pulled itself: that is no source's to give.
        """
        applied = self._applier.state
        pulled = [position.sealed_at for position in self._reshard_table.export()]
        if not all(pulled):
            return applied
        try:
            first = applied.offset
            if since is not None:
                first = self._log.trimmable(bytes_max)
                with contextlib.suppress(SnapshotExpiredError):  # as far as it goes
                    first = max(first, self._log.offset_after(since))
            if floor is not None:
                first = min(first, floor)
            first = max(first, *pulled, self._log.start)
            if first >= applied.offset:
                return applied
            return AppliedState(first, *self._log.stand_at(first))
        except SnapshotExpiredError:
            return applied  # it was trimmed meanwhile

    def end_beyond(self, offset: int, reason: str) -> None:
        """End the snapshots that stand above `offset`; frees an applier that waits for them.

        So it comes before taking the applier's mutex, which that applier holds.
        """
        with self._changed:
            self._snapshots.close_beyond(offset, reason)
            self._checkpoints.close_beyond(offset, reason)

    def end_all(self, reason: str) -> None:
        """End all snapshots, as `end_beyond` does."""
        self.end_beyond(-1, reason)

    def expire(self) -> None:
        """End what nobody reads any more, in either form; called now and then.

        And checkpoints that are too old or take too much room.
        """
        with self._changed:
            self._snapshots.expire_idle()
        self._checkpoints.expire()

    # --- facts -------------------------------------------------------------------------------

    def floors(self, handover_seconds: float) -> list[int]:
        """Return the offsets from which receivers of snapshots will follow the log.

        Of snapshots under way, and of those that ended no longer ago than this.
        """
        return [*self._snapshots.floors(handover_seconds), *self._checkpoints.floors()]

    @property
    def readers(self) -> int:
        """How many scans and file snapshots are read."""
        return self._snapshots.scans + self._checkpoints.readers

    def memory_bytes(self) -> int:
        """Return what the snapshots that are read hold in memory (SS-07)."""
        return self._snapshots.memory_bytes()

    @property
    def waited_seconds(self) -> float:
        """How long applying has waited because that memory was at its limit."""
        return self._snapshots.waited_seconds

    def pinned_bytes(self) -> int:
        """Return the disk room of files that only checkpoints still hold."""
        return self._checkpoints.pinned_bytes()
