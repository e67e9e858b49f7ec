"""What a replica does while it leads: streams to followers, commits, and answers writes.

Concurrency: every method but `pump` is called under the partition's lock, or takes it; `pump`
runs as the partition's job, one at a time, and holds the lock only to read and change positions,
never while it syncs or applies.
"""

from typing import TYPE_CHECKING

from rezone.datanode.insync import FollowerProgress
from rezone.datanode.lease import Lease
from rezone.datanode.protocol import Leadership, protocol_of
from rezone.datanode.stream import ProducerStream
from rezone.datanode.write import Answer
from rezone.domain.observed.disk_speed import does_well, is_slow
from rezone.storage.history import rollback_offset
from rezone.wire.errors import NotReadyError, StaleEpochError
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

if TYPE_CHECKING:
    from rezone.datanode.partition import Partition


class LeaderDuties:
    """The leader's side of a partition; `state` is None while another replica leads."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self.partition_id: PartitionId = partition.partition_id
        self.state: Leadership | None = None
        self.streams: dict[NodeId, ProducerStream] = {}
        self._saved = True
        self._refusal: RefuseIsr | None = None
        self.led_from = 0
        self.fill_after = float("-inf")

    @property
    def committed(self) -> int:
        """The commit offset."""
        return self._partition.positions.committed

    @property
    def log_end(self) -> int:
        """The offset after the last row."""
        return self._partition.store.log_end

    @property
    def refusal(self) -> RefuseIsr | None:
        """The coordinator's answer to what is proposed now, None while it has not refused it."""
        proposal = self.state.proposal if self.state is not None else None
        told = self._refusal
        return told if told is not None and told.proposal == proposal else None

    @property
    def is_overtaken(self) -> bool:
        """Whether an in-sync follower has on its disk what is not on this one yet."""
        durable = self._partition.store.durable_end
        return any(known.durable > durable for known in self._candidates())

    @property
    def can_be_replaced(self) -> bool:
        """Whether an in-sync follower streams that may lead, and whose disk does well."""
        return bool(self._candidates())

    def _candidates(self) -> list[FollowerProgress]:
        state = self.state
        if state is None:
            return []
        # Asked without the lock, too: who follows may be another set by the next line.
        known = [state.followers.get(node) for node in state.state.isr]
        streaming = [each for each in known if each and each.streaming and not each.uncompared]
        return [each for each in streaming if does_well(each.sync_ms)]

    def refused(self, answer: RefuseIsr) -> None:
        """Take the refusal of a proposal; one that has changed meanwhile is asked for anew.

        The set that counts stays as it is: it may shrink only by a record that is written.
        """
        partition = self._partition
        with partition.lock:
            self._refusal = answer
            known = self.refusal is not None
        if known:
            partition.log.warning(
                "the in-sync set was not changed",
                proposed=answer.proposal.new_isr,
                code=answer.error_code,
                error=answer.error_message,
            )
            partition.touched(at_once=True)

    def require_state(self) -> Leadership:
        """Return the leadership; NotLeaderError when another replica leads."""
        if self.state is None:
            raise self._partition.not_leader()
        return self.state

    def begin(self, record: LeaderAndIsr, *, hold_until: float, saved: bool) -> None:
        """Start a leadership; its commit offset starts where the replica's stands.

        Nothing is committed before `hold_until` (monotonic): an earlier leader may have leases;
        nor before the facts are on the disk, which the job sees to if they are not (`saved`).
        """
        partition = self._partition
        self.end_streams("a new leadership", None, None)
        self._saved, self.led_from = saved, partition.store.log_end
        self.state = protocol_of(partition.settings)(
            node=partition.node_id,
            state=record,
            barrier=partition.store.log_end,
            committed=min(partition.positions.committed, partition.store.log_end),
            settings=partition.settings,
            hold_until=hold_until,
            proposed=partition.store.meta.proposed,
        )
        # An earlier leader's transactions grow old here.
        partition.look_again(partition.clock.monotonic())
        if partition.clock.monotonic() < hold_until:
            partition.log.info("holding commits back: the leader before may have leases")
            partition.look_again(hold_until)
        else:
            self._settle()

    def _settle(self) -> None:
        """Note that no earlier leader has a lease; it reaches the disk with something else."""
        partition = self._partition
        if partition.store.meta.settled_epoch < partition.leader_epoch:
            partition.store.update_meta(settled_epoch=partition.leader_epoch, durable=False)

    def end(self, leader: NodeId, epoch: int) -> None:
        """End the leadership, and tell every follower who leads now.

        The caller calls `host.restream` without locks, which sends that at once: in the write gap,
        where every thread that must wake up first is felt.
        """
        self.state = None
        self.end_streams("another replica leads", leader, epoch, tell=False)
        self._partition.importers.ring(urgent=True)

    def stand_down(self, reason: str) -> None:
        """End the leadership in memory alone, and give up its read leases.

        No read is answered from here on, so whoever leads next need not wait until they are over.
        """
        epoch = self.require_state().state.leader_epoch
        self.state = None
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

    def restart_streams(self, reason: str) -> None:
        """End all streams of a leadership that goes on: what the next ones begin with has changed.

        Nobody joins before its next stream has begun.
        """
        partition = self._partition
        with partition.lock:
            if self.state is not None:
                for node in self.streams:
                    self.state.follower(node).stream_ended(partition.clock.monotonic())
            self.end_streams(reason, None, None)

    def end_left_out(self, known: set[NodeId]) -> None:
        """End the streams of others: who is taken in again may have lost its rows meanwhile."""
        for node in self.streams.keys() - known:
            self.streams.pop(node).end("the replica was left out")

    # --- what a producer channel calls -----------------------------------------------------------

    def read_log(self, offset: int, bytes_max: int) -> bytes:
        """Return whole raw entries from `offset` on; empty at the end."""
        return self._partition.store.read(offset, bytes_max)

    def will_lead(self, leader_epoch: int) -> bool:
        """Return whether a takeover to this replica, with this epoch, is about to end."""
        partition = self._partition
        with partition.lock:
            return partition.takeover.eager and partition.takeover.epoch == leader_epoch

    def open_stream(self, stream: ProducerStream, request: StreamRequest) -> Message:
        """Answer a stream request; a consumer that has another history is rolled back (DCP-05)."""
        partition = self._partition
        with partition.lock:
            state = self.require_state()
            epoch = state.state.leader_epoch
            if request.leader_epoch < epoch:
                raise StaleEpochError(f"the leader epoch is {epoch}", leader_epoch=epoch)
            if request.leader_epoch > epoch:
                raise NotReadyError(f"epoch {request.leader_epoch} is not known here yet")
            if stream.node not in {*state.state.replicas, *state.state.isr}:
                raise NotReadyError(f"node {stream.node} is not known as a replica here yet")
            meta = partition.store.meta
            rollback = rollback_offset(
                meta.failover_log,
                partition.store.log_end,
                request.high_offset,
                request.partition_uuid,
            )
            if rollback is not None:
                return StreamRollback(
                    opaque=request.opaque, partition=self.partition_id, offset=rollback
                )
            log_start = partition.store.log_start
            if request.high_offset < log_start:
                return StreamNeedsSnapshot(
                    opaque=request.opaque, partition=self.partition_id, log_start_offset=log_start
                )
            self._attach(stream, state)
            return StreamOk(
                opaque=request.opaque,
                partition=self.partition_id,
                leader_epoch=epoch,
                failover_log=meta.failover_log,
                committed_offset=partition.positions.committed,
                in_sync=stream.node in state.state.isr,
                partition_epoch=state.state.partition_epoch,
                time_floor=partition.write_clock.floor,
            )

    def _attach(self, stream: ProducerStream, state: Leadership) -> None:
        old = self.streams.get(stream.node)
        self.streams[stream.node] = stream
        if old is not None:
            old.end("the consumer has opened another stream")
        state.follower(stream.node).stream_began()
        self._partition.takeover.stream_opened(stream)
        self._partition.touched(at_once=True)

    def detach_stream(self, stream: ProducerStream) -> None:
        """Forget a stream that has ended."""
        partition = self._partition
        with partition.lock:
            if self.streams.get(stream.node) is not stream:
                return
            del self.streams[stream.node]
            if self.state is not None:
                self.state.follower(stream.node).stream_ended(partition.clock.monotonic())
            partition.touched(at_once=True)
        partition.wake()

    def acked(self, stream: ProducerStream, ack: FetchLog, *, at_leisure: bool = False) -> None:
        """Take a follower's ack."""
        partition = self._partition
        with partition.lock:
            if self.state is None or self.streams.get(stream.node) is not stream:
                return
            now, store = partition.clock.monotonic(), partition.store
            slow = is_slow(ack.slow_ms, [partition.host.disk_speed.sync_ms])
            news = self.state.follower(stream.node).note_state(ack, slow=slow)
            self.fill_after = max(self.fill_after, now + ack.rest_ms / 1000)
            self.state.acked(
                stream.node, ack.fetch_offset, ack.kv_applied_offset, now, store.log_end
            )
            # Of the acks of one write only the last one changes anything.
            handing_over = partition.takeover.hands_over
            due = news or handing_over or self.state.moves_on(store.durable_end, store.log_end)
        if due:
            # The thread that reads acks must not be the one that hands over: it may have to wait.
            partition.move_on(at_leisure=at_leisure and not handing_over)

    def granted(self, stream: ProducerStream, lease: Lease) -> None:
        """Take a read lease of a follower's node."""
        partition = self._partition
        with partition.lock:
            if self.state is None or self.streams.get(stream.node) is not stream:
                return
            self.state.granted(stream.node, lease)
            if partition.host.told.lost:
                # It began with less than may have been promised: it joins on its next stream.
                self.state.follower(stream.node).count_no_lease()
            partition.changed.notify_all()
            news = partition.reads.waits or stream.node not in self.state.maximal
        if news:
            partition.wake()

    def close_time(self) -> ClosedTime | None:
        """Close the latest time that may be, for the followers; None when there is no news."""
        return self._partition.closing.close()

    def ask_leases(self) -> None:
        """Ask all followers for leases now; under the lock."""
        for stream in self.streams.values():
            stream.ask_lease()

    # --- the partition's job ---------------------------------------------------------------------

    def pump(self) -> None:
        """Sync, commit, apply, answer: whatever of it is due."""
        partition = self._partition
        store = partition.store
        if not self._saved:
            self._saved = True
            store.update_meta()
        if store.durable_end < store.log_end:
            store.sync()
        with partition.lock:
            state = self.state
            if state is None or not self._saved:
                return
            now = partition.clock.monotonic()
            if now >= state.hold_until:
                self._settle()
            if state.advance(store.durable_end, now, partition.config.min_in_sync_replicas):
                partition.positions.commit(state.committed)
                partition.look_again(self._next_broadcast())
                partition.importers.ring(urgent=store.seal is not None)
            committed = state.committed
            self._propose(state)
        if committed > store.applied:
            store.apply_to(committed)
        answers: list[Answer] = []
        with partition.lock:
            partition.positions.note_applied()
            if self.state is state:
                # After the rows are applied: who has an answer can read what it wrote.
                answers = partition.intake.take_committed(committed)
        for reply, result in answers:
            reply(result)
        partition.index.pump()

    def tick(self, now: float) -> None:
        """Look after what no event wakes: laggards, held commits, followers' commit offsets."""
        partition = self._partition
        if self.state is None:
            return
        if partition.store.meta.settled_epoch < partition.leader_epoch:
            if now >= self.state.hold_until:
                partition.wake()
            else:
                partition.look_again(self.state.hold_until)
        self._propose(self.state)
        partition.transacting.tick(now)
        for stream in self.streams.values():
            if stream.committed_sent < partition.positions.committed:
                stream.wake()

    def _next_broadcast(self) -> float:
        """Return when followers that had no entries since hear of the commit offset.

        The same moment for all partitions: what goes to one node then goes in one frame.
        """
        interval = self._partition.settings.commit_interval_ms / 1000
        return (self._partition.clock.monotonic() // interval + 1) * interval

    def _propose(self, state: Leadership) -> None:
        partition = self._partition
        if partition.takeover.blocks_writes:
            return
        needed = partition.config.min_in_sync_replicas
        if state.propose(partition.clock.monotonic(), partition.store.log_end, needed):
            # Before anybody can see it, for the answer may come after a restart. Under the lock,
            # but rarely: members come and go.
            partition.store.update_meta(proposed=tuple(sorted(state.maximal)))
            partition.touched(at_once=True)
        partition.look_again(state.lag_deadline)
