"""How a partition ends: its leader seals the log, and from then on others serve its range.

    leader, asked by the coordinator             targets (leaders of the next layout)
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
nobody pulls what is not committed.

What follows from what is decided by `core.seal`, which is pure; here it is done.

Concurrency: under the partition's lock.
"""

from rezone.datanode.commit.insync import Outcome
from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.core.seal import (
    Announce,
    Append,
    Asked,
    Committed,
    Event,
    Leads,
    Lost,
    Refuse,
    Sees,
    SendOn,
    state_of,
    step,
)
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.transacting import Transacting
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES, NewEntry, WriteIntake
from rezone.storage.log.entry import NO_BATCH, EntryKind, note_rows
from rezone.wire.messages import NodeId, Seal, SealState, WriteResult


class Sealing:
    """The leader's part in the end of a partition."""

    def __init__(
        self, replica: ReplicaState, intake: WriteIntake, transacting: Transacting
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._intake = intake
        self._transacting = transacting

    @property
    def state(self) -> SealState:
        """What this replica can tell the coordinator of the seal."""
        return state_of(self._look())

    def start(self, request: Seal) -> None:
        """Seal the log; a repeat is done already.

        ConflictError when the record does not authorize it or a takeover is under way;
        NotReadyError and NotEnoughReplicasError when the seal could not be committed at once;
        NotLeaderError and StaleEpochError as everywhere.
        """
        self._step(Asked(request.leader_epoch))

    def _step(self, event: Event) -> None:
        """Do what follows from an event."""
        match step(event, self._look()):
            case Refuse(error):
                raise error
            case SendOn():
                raise self._replica.not_leader()
            case Append():
                self._append()
            case Announce(end_offset):
                self._replica.log.info("sealed", end_offset=end_offset)
                self._replica.touched(at_once=True)

    def _append(self) -> None:
        replica = self._replica
        self._transacting.abort_all()
        entry = NewEntry(note_rows(), ENTRY_OVERHEAD_BYTES, NO_BATCH, EntryKind.SEAL)
        self._intake.append_entry(entry, 0, self._outcome)
        replica.seal_gap.stop(replica.leader_epoch, replica.clock.monotonic())
        replica.log.info("sealing", leader_epoch=replica.leader_epoch)
        replica.touched(at_once=True)

    @entry
    def _outcome(self, outcome: Outcome) -> None:
        """Take what became of the seal's entry."""
        if isinstance(outcome, WriteResult):
            self._step(Committed(outcome.end_offset))
        else:
            self._step(Lost())

    def _look(self) -> Sees:
        replica, leadership = self._replica, self._replica.leadership
        seal, transfer = replica.store.seal, replica.transfer
        return Sees(
            partition=replica.partition_id,
            leader_epoch=replica.leader_epoch,
            seal_end=None if seal is None else seal.end_offset,
            committed=replica.positions.committed,
            authorized=replica.record.sealing,
            transferring=transfer.hands_over or transfer.blocks_writes,
            rows_max=replica.settings.takeover_rows_max,
            leads=None if leadership is None else self._look_at(leadership),
        )

    def _look_at(self, leadership: Leadership) -> Leads:
        replica, record = self._replica, self._replica.record
        others = leadership.maximal - {replica.node_id}
        known = leadership.followers
        streaming = frozenset(node for node, each in known.items() if each.streaming)
        log_end = replica.store.log_end
        missing: dict[NodeId, int | None] = {
            node: log_end - known[node].durable if node in streaming else None for node in others
        }
        electable = others.union(record.isr, record.eligible) - {replica.node_id}
        return Leads(leadership.serving, missing, frozenset(electable), streaming)
