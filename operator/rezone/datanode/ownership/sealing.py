"""How a partition ends: its leader seals the log, and from then on others serve its range.

    leader, asked by the coordinator             importers (leaders of the next layout)
    in one hold of the partition's lock:
      aborts open transactions
      appends the seal (`seal`)
    writes are held, newest reads wait
    commits it in its in-sync set           -->  import it, and serve from there
    answers all of them: Resharded

Nothing is waited for before: where the in-sync set is too small or far behind the leader refuses,
serves on as if nothing had been, and is asked again. There is nothing to remember either
(docs/decisions/0158). The seal is an entry: a leader that finds it in its log, after a failover or
a restart, is as far as the one that has appended it, and one that does not find it serves on, for
nobody imports what is not committed.

Concurrency: under the partition's lock.
"""

from rezone.datanode.commit.insync import Outcome
from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.writing.transacting import Transacting
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES, NewEntry, WriteIntake
from rezone.storage.log.entry import NO_BATCH, EntryKind, note_rows
from rezone.wire.errors import ConflictError, NotReadyError, StaleEpochError
from rezone.wire.messages import Seal, SealState, WriteResult


class Sealing:
    """The leader's part in the end of a partition."""

    def __init__(
        self, replica: ReplicaState, intake: WriteIntake, transacting: Transacting
    ) -> None:
        self._replica = replica
        self._intake = intake
        self._transacting = transacting

    @property
    def state(self) -> SealState:
        """What this replica can tell the coordinator of the seal."""
        replica, leading = self._replica, self._replica.leadership
        if leading is None or replica.is_sealing:
            return SealState.UNKNOWN
        if replica.is_sealed:
            return SealState.SEALED
        # Whoever streams has no entry that is not here. Any other may have an earlier leader's
        # seal, and lead with it.
        record = replica.record
        electable = {*leading.maximal, *record.isr, *record.eligible} - {replica.node_id}
        streaming = {node for node, known in leading.followers.items() if known.streaming}
        return SealState.NONE if electable <= streaming else SealState.UNKNOWN

    def start(self, request: Seal) -> None:
        """Seal the log; a repeat is done already.

        ConflictError when the record does not authorize it or a takeover is under way;
        NotReadyError and NotEnoughReplicasError when the seal could not be committed at once;
        NotLeaderError and StaleEpochError as everywhere.
        """
        replica = self._replica
        if replica.leader_epoch != request.leader_epoch:
            raise StaleEpochError(
                f"the leader epoch is {replica.leader_epoch}, not {request.leader_epoch}",
                leader_epoch=replica.leader_epoch,
            )
        leadership = replica.require_leadership()
        if replica.store.seal is not None:
            return
        if not replica.record.sealing:
            raise ConflictError(f"partition {replica.partition_id} is not authorised to seal")
        if replica.transfer.hands_over or replica.transfer.blocks_writes:
            raise ConflictError("a takeover is under way")
        self._require_near(leadership)
        self._transacting.abort_all()
        entry = NewEntry(note_rows(), ENTRY_OVERHEAD_BYTES, NO_BATCH, EntryKind.SEAL)
        self._intake.append_entry(entry, 0, self._committed)
        replica.log.info("sealing", leader_epoch=replica.leader_epoch)
        replica.touched(at_once=True)

    def _require_near(self, leadership: Leadership) -> None:
        """Refuse while the seal would have to wait for somebody, and with it every write."""
        replica = self._replica
        if not leadership.serving:
            raise NotReadyError("this leader has not committed what it began with")
        rows_max = replica.settings.takeover_rows_max
        for node in leadership.maximal - {replica.node_id}:
            known = leadership.followers.get(node)
            if known is None or not known.streaming:
                raise NotReadyError(f"node {node} is in sync and has no stream")
            if (missing := replica.store.log_end - known.durable) > rows_max:
                raise NotReadyError(f"node {node} is in sync and misses {missing} rows")

    def _committed(self, outcome: Outcome) -> None:
        """Note that the seal is committed, or that this replica does not lead any more."""
        if isinstance(outcome, WriteResult):
            self._replica.log.info("sealed", end_offset=outcome.end_offset)
            self._replica.touched(at_once=True)
