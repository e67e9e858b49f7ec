"""What a replica does while it leads: streams to followers, commits, and answers writes.

Concurrency: what others call is an `entry`, the rest runs within one; `pump` runs as the
partition's job, one at a time, and takes a step only to read and change positions, never while it
syncs or applies.
"""

from collections.abc import Callable
from typing import NamedTuple

from rezone.datanode.commit.insync import FollowerProgress
from rezone.datanode.commit.lease import Lease
from rezone.datanode.commit.protocol import Leadership, protocol_of
from rezone.datanode.core.in_sync import (
    Acked,
    Commit,
    Effect,
    Ended,
    Event,
    Granted,
    Keep,
    LookAgain,
    Opened,
    Propose,
    Recorded,
    RunJob,
    Sees,
    Settle,
    Synced,
    Ticked,
    step,
)
from rezone.datanode.core.joining import Asked, Copy, LeaderLog, Refuse, RollBack
from rezone.datanode.replication.stream import ProducerStream
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.transacting import Transacting
from rezone.datanode.writing.write import WriteIntake
from rezone.domain.observed.disk_speed import does_well, is_slow
from rezone.wire.messages import (
    ClosedTime,
    FetchLog,
    LeaderAndIsr,
    Message,
    NodeId,
    PartitionId,
    RefuseIsr,
    StreamNeedsSnapshot,
    StreamOk,
    StreamRequest,
    StreamRollback,
)


class LeaderAsks(NamedTuple):
    """What those are asked for that look at the leadership themselves."""

    close_time: Callable[[], ClosedTime | None]
    reads_wait: Callable[[], bool]
    stream_opened: Callable[[ProducerStream], None]


class LeaderDuties:
    """The leader's side of a partition; idle while another replica leads."""

    def __init__(
        self, replica: ReplicaState, intake: WriteIntake, transacting: Transacting, asks: LeaderAsks
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._intake = intake
        self._transacting = transacting
        self._asks = asks
        self.partition_id: PartitionId = replica.partition_id
        self.streams: dict[NodeId, ProducerStream] = {}
        self._saved = True
        self._refusal: RefuseIsr | None = None
        self.led_from = 0

    @property
    def committed(self) -> int:
        """The commit offset."""
        return self._replica.positions.committed

    @property
    def log_end(self) -> int:
        """The offset after the last row."""
        return self._replica.store.log_end

    @property
    def refusal(self) -> RefuseIsr | None:
        """The coordinator's answer to what is proposed now, None while it has not refused it."""
        state = self._replica.leadership
        proposal = state.proposal if state is not None else None
        told = self._refusal
        return told if told is not None and told.proposal == proposal else None

    @property
    def is_overtaken(self) -> bool:
        """Whether an in-sync follower has on its disk what is not on this one yet."""
        durable = self._replica.store.durable_end
        return any(known.durable > durable for known in self._candidates())

    @property
    def can_be_replaced(self) -> bool:
        """Whether an in-sync follower streams that may lead, and whose disk does well."""
        return bool(self._candidates())

    def _candidates(self) -> list[FollowerProgress]:
        state = self._replica.leadership
        if state is None:
            return []
        # Asked without the lock, too: who follows may be another set by the next line.
        known = [state.followers.get(node) for node in state.state.isr]
        streaming = [each for each in known if each and each.streaming and not each.uncompared]
        return [each for each in streaming if does_well(each.sync_ms)]

    @entry
    def refused(self, answer: RefuseIsr) -> None:
        """Take the refusal of a proposal; one that has changed meanwhile is asked for again.

        The set that counts stays as it is: it may shrink only by a record that is written.
        """
        replica = self._replica
        self._refusal = answer
        known = self.refusal is not None
        if known:
            replica.log.warning(
                "the in-sync set was not changed",
                proposed=answer.proposal.new_isr,
                code=answer.error_code,
                error=answer.error_message,
            )
            replica.touched(at_once=True)

    def begin(self, record: LeaderAndIsr, *, hold_until: float, saved: bool) -> None:
        """Start a leadership; its commit offset starts where the replica's stands.

        Nothing is committed before `hold_until` (monotonic): an earlier leader may have leases;
        nor before the facts are on the disk, which the job sees to if they are not (`saved`).
        """
        replica = self._replica
        self.end_streams("a new leadership", None, None)
        self._saved, self.led_from = saved, replica.store.log_end
        replica.write_gap.begin(record.leader_epoch)
        replica.lead_with(
            protocol_of(replica.settings)(
                node=replica.node_id,
                state=record,
                barrier=replica.store.log_end,
                committed=min(replica.positions.committed, replica.store.log_end),
                settings=replica.settings,
                hold_until=hold_until,
                proposed=replica.store.meta.proposed,
            )
        )
        # An earlier leader's transactions grow old here.
        replica.look_again(replica.clock.monotonic())
        if replica.clock.monotonic() < hold_until:
            replica.log.info("holding commits back: the leader before may have leases")
            replica.look_again(hold_until)
        else:
            self._settle()

    def _settle(self) -> None:
        """Note that no earlier leader has a lease; it reaches the disk with something else."""
        replica = self._replica
        if replica.store.meta.settled_epoch < replica.leader_epoch:
            replica.store.update_meta(settled_epoch=replica.leader_epoch, durable=False)

    def end(self, leader: NodeId, epoch: int) -> None:
        """End the leadership, and tell every follower who leads now.

        The caller has the stream fit (`restream`), which sends that at once after the step: in the
        write gap, where every thread that must wake up first is felt.
        """
        self._replica.lead_with(None)
        self.end_streams("another replica leads", leader, epoch, tell=False)
        self._replica.reshard_targets.notify(urgent=True)

    def stand_down(self, reason: str) -> None:
        """End the leadership in memory alone, and give up its read leases.

        No read is answered from here on, so whoever leads next need not wait until they are over.
        """
        epoch = self._replica.require_leadership().state.leader_epoch
        self._replica.lead_with(None)
        for stream in list(self.streams.values()):
            stream.end(reason, released_epoch=epoch)
        self.streams.clear()

    def end_streams(
        self, reason: str, leader: NodeId | None, epoch: int | None, *, tell: bool = True
    ) -> None:
        """End all streams with StreamEnd; the senders are told, or the caller pushes."""
        for stream in list(self.streams.values()):
            stream.end(reason, leader, epoch, tell=tell)
        self.streams.clear()

    @entry
    def restart_streams(self, reason: str) -> None:
        """End all streams of a leadership that goes on: what the next ones begin with has changed.

        Nobody joins before its next stream has begun.
        """
        replica = self._replica
        if replica.leadership is not None:
            for node in self.streams:
                self._group_step(replica.leadership, Ended(node))
        self.end_streams(reason, None, None)

    @entry
    def clock_bound_found(self, before: int) -> None:
        """Give no time below what this node has told before it knew its clock bound again."""
        self._replica.write_clock.raise_to(before)
        self.restart_streams("what was told before is known again")

    def _end_left_out(self, known: frozenset[NodeId]) -> None:
        """End the streams of others: who is taken in again may have lost its rows meanwhile."""
        for node in self.streams.keys() - known:
            self.streams.pop(node).end("the replica was left out")

    # --- what a producer channel calls -----------------------------------------------------------

    def read_log(self, offset: int, bytes_max: int) -> bytes:
        """Return whole raw entries from `offset` on; empty at the end."""
        return self._replica.store.read(offset, bytes_max)

    @entry
    def will_lead(self, leader_epoch: int) -> bool:
        """Return whether a takeover to this replica, with this epoch, is about to end."""
        replica = self._replica
        return replica.transfer.eager and replica.transfer.epoch == leader_epoch

    @entry
    def open_stream(self, stream: ProducerStream, request: StreamRequest) -> Message:
        """Answer a stream request; a consumer that has another history is rolled back (DCP-05)."""
        replica = self._replica
        state = replica.require_leadership()
        asked = Asked(
            stream.node, request.leader_epoch, request.high_offset, request.partition_uuid
        )
        match self._log(state).step(asked):
            case Refuse(error):
                raise error
            case RollBack(offset):
                return StreamRollback(
                    opaque=request.opaque, partition=self.partition_id, offset=offset
                )
            case Copy(log_start):
                return StreamNeedsSnapshot(
                    opaque=request.opaque,
                    partition=self.partition_id,
                    log_start_offset=log_start,
                )
        replica.write_gap.take(request.stopped_ms, replica.clock.monotonic())
        self._attach(stream, state)
        return StreamOk(
            opaque=request.opaque,
            partition=self.partition_id,
            leader_epoch=state.state.leader_epoch,
            failover_log=replica.store.meta.failover_log,
            committed_offset=replica.positions.committed,
            in_sync=stream.node in state.state.isr,
            partition_epoch=state.state.partition_epoch,
            time_floor=replica.write_clock.floor,
        )

    def _log(self, leadership: Leadership) -> LeaderLog:
        store, record = self._replica.store, leadership.state
        return LeaderLog(
            failover_log=store.meta.failover_log,
            log_start=store.log_start,
            log_end=store.log_end,
            leader_epoch=record.leader_epoch,
            members=frozenset({*record.replicas, *record.isr}),
        )

    def _attach(self, stream: ProducerStream, state: Leadership) -> None:
        old = self.streams.get(stream.node)
        self.streams[stream.node] = stream
        if old is not None:
            old.end("the consumer has opened another stream")
        self._group_step(state, Opened(stream.node))
        self._asks.stream_opened(stream)
        self._replica.touched(at_once=True)

    @entry
    def detach_stream(self, stream: ProducerStream) -> None:
        """Forget a stream that has ended."""
        replica = self._replica
        if self.streams.get(stream.node) is not stream:
            return
        del self.streams[stream.node]
        if replica.leadership is not None:
            self._group_step(replica.leadership, Ended(stream.node))
        replica.touched(at_once=True)
        replica.wake()

    @entry
    def acked(self, stream: ProducerStream, ack: FetchLog, *, inline: bool = False) -> None:
        """Take a follower's ack."""
        replica = self._replica
        state = replica.leadership
        if state is None or self.streams.get(stream.node) is not stream:
            return
        slow = is_slow(ack.slow_ms, [replica.services.disk_speed.sync_ms])
        replica.backfill_later(replica.clock.monotonic() + ack.throttle_ms / 1000)
        handing_over = replica.transfer.hands_over
        due = self._group_step(state, Acked(stream.node, ack, slow)) or handing_over
        if due:
            # The thread that reads acks must not be the one that hands over: it may have to wait.
            replica.move_on(inline=inline and not handing_over)

    @entry
    def granted(self, stream: ProducerStream, lease: Lease) -> None:
        """Take a read lease of a follower's node."""
        replica = self._replica
        state = replica.leadership
        if state is None or self.streams.get(stream.node) is not stream:
            return
        # Without its bound the node began with less than may have been promised.
        counts = not replica.services.clock_bound.lost
        news = self._group_step(state, Granted(stream.node, lease, counts))
        news = news or self._asks.reads_wait()
        replica.changed.notify_all()
        if news:
            replica.wake()

    def close_time(self) -> ClosedTime | None:
        """Close the latest time that may be, for the followers; None when there is no news."""
        return self._asks.close_time()

    def ask_leases(self) -> None:
        """Ask all followers for leases now; under the lock."""
        for stream in self.streams.values():
            stream.ask_lease()

    # --- the partition's job ---------------------------------------------------------------------

    def pump(self) -> None:
        """Sync, commit, apply: whatever of it is due; answers leave when no lock is held."""
        replica = self._replica
        store = replica.store
        if not self._saved:
            self._saved = True
            store.update_meta()
        if store.durable_end < store.log_end:
            store.sync()
        state = self._has_synced()
        if state is None:
            return
        committed = state.committed
        if committed > store.applied:
            if replica.services.tracer is not None:
                replica.services.tracer.applies()
            store.apply_to(committed)
        # After the rows are applied: who has an answer can read what it wrote.
        self._has_applied(state, committed)

    @entry
    def _has_synced(self) -> Leadership | None:
        """Commit what may be committed; None where there is no leadership that may."""
        state = self._replica.leadership
        if state is None or not self._saved:
            return None
        self._group_step(state, Synced())
        self._note_gap(state)
        return state

    def _note_gap(self, state: Leadership) -> None:
        """Note when the first write could be committed, and report it."""
        replica = self._replica
        now, needed = replica.clock.monotonic(), replica.config.min_in_sync_replicas
        if replica.write_gap.is_open and state.can_commit(replica.store.durable_end, now, needed):
            replica.write_gap.end(now, replica.clock.micros())
            replica.touched(at_once=True)

    @entry
    def _has_applied(self, state: Leadership, committed: int) -> None:
        """Answer what may be answered, unless another leadership has begun."""
        replica = self._replica
        replica.positions.note_applied()
        if replica.leadership is state:
            self._intake.answer_committed(committed)

    def tick(self, now: float) -> None:
        """Look after what no event wakes: laggards, held commits, followers' commit offsets."""
        replica = self._replica
        state = replica.leadership
        if state is None:
            return
        if self._group_step(state, Ticked()):
            replica.wake()
        self._transacting.tick(now)
        for stream in self.streams.values():
            if stream.committed_sent < replica.positions.committed:
                stream.wake()

    def _next_broadcast(self) -> float:
        """Return when followers that had no entries since hear of the commit offset.

        The same moment for all partitions: what goes to one node then goes in one frame.
        """
        interval = self._replica.settings.commit_interval_ms / 1000
        return (self._replica.clock.monotonic() // interval + 1) * interval

    def record_came(self, record: LeaderAndIsr) -> None:
        """Take the coordinator's record of this leadership."""
        self._group_step(self._replica.require_leadership(), Recorded(record))

    # --- what follows for the group --------------------------------------------------------------

    def _group_step(self, group: Leadership, event: Event) -> bool:
        """Do what follows from an event, under the lock; whether the job has to run."""
        runs = False
        for effect in step(group, event, self._look(), self._replica.clock.monotonic()):
            if isinstance(effect, RunJob):
                runs = True
            else:
                self._do(effect)
        return runs

    def _look(self) -> Sees:
        replica, store = self._replica, self._replica.store
        return Sees(
            store.durable_end,
            store.log_end,
            replica.config.min_in_sync_replicas,
            frozen=replica.transfer.blocks_writes,
            settled=store.meta.settled_epoch >= replica.leader_epoch,
        )

    def _do(self, effect: Effect) -> None:
        replica = self._replica
        match effect:
            case LookAgain(at):
                replica.look_again(at)
            case Commit(offset):
                replica.positions.commit(offset)
                replica.look_again(self._next_broadcast())
                replica.reshard_targets.notify(urgent=replica.store.seal is not None)
            case Propose(_, maximal):
                # Before anybody can see it, for the answer may come after a restart. Under the
                # lock, but rarely: members come and go.
                replica.store.update_meta(proposed=maximal)
                replica.touched(at_once=True)
            case Settle():
                self._settle()
            case Keep(nodes):
                self._end_left_out(nodes)
