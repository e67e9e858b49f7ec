"""One partition's replica on this node: puts its parts together, and runs its job.

The duties of each role stand in packages of their own (`replication`, `writing`, `reading`), what
they share in `state.replica_state`. A part gets the state and the parts that it needs; where two
need each other, the later one is reached by a call that is given to the earlier one here. Nothing
below `node` imports this module (docs/decisions/0360).

Concurrency: as in `state.replica_state`. Whoever wants something done wakes the job (`pump`);
`host.restream` is called without any lock. What time alone can make due is looked after by `tick`,
from `due` on (`look_again`).
"""

import threading
import time
from collections.abc import Callable

from rezone.datanode.commit.insync import Reply
from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.ownership.sealing import Sealing
from rezone.datanode.reading.closed_timestamp import ClosedTimestamp
from rezone.datanode.reading.read import ReadQueue
from rezone.datanode.replica.calls import Calls
from rezone.datanode.replica.failing import Failing
from rezone.datanode.replica.host import Host
from rezone.datanode.replica.upkeep import Upkeep
from rezone.datanode.replication.damage import Damage
from rezone.datanode.replication.follower import FollowerAsks, FollowerDuties
from rezone.datanode.replication.leader import LeaderAsks, LeaderDuties
from rezone.datanode.replication.roles import Roles
from rezone.datanode.replication.stream import ProducerStream
from rezone.datanode.replication.takeover import ClientNews, TakeoverProcess
from rezone.datanode.resharding.reshard_streams import BACKFILL_WEIGHT, BackfillWork, ReshardStreams
from rezone.datanode.scheduling import inline_sends
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.arrivals import Arrival
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.datanode.writing.pacing import WritePacer
from rezone.datanode.writing.planning import Planning
from rezone.datanode.writing.producing import PreparedOpen, Producing
from rezone.datanode.writing.transacting import Transacting
from rezone.datanode.writing.write import NewEntry, WriteIntake
from rezone.storage.store import PartitionStore
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    NotReadyError,
    RezoneError,
)
from rezone.wire.layouts import HashRange
from rezone.wire.messages import (
    ClosedTime,
    SetState,
    StopReplica,
    StreamEnd,
    TransactionEnd,
)


class Replica(ReplicaState):
    """A replica, put together from its parts; `roles` has what the coordinator calls."""

    def __init__(self, store: PartitionStore, host: "Host[Replica]") -> None:
        super().__init__(store, host, self.pump)
        self.host = host
        self.linking = threading.Lock()
        self.retired = False
        self.reads = ReadQueue(self, host.waiting_reads)
        self.closed_timestamp = ClosedTimestamp(self, self.reads.look)
        self.index = IndexDuties(self)
        self.transacting = Transacting(self, self._append_entry, self._once_newest)
        self.producing = Producing(self, self.transacting.holder_of)
        self.intake = WriteIntake(
            self,
            host.budget,
            Planning(self.transacting, self.producing).plan,
            self.must_wait,
            self._once_newest,
        )
        self.pacer = WritePacer(self, host.budget, self.write_now, self._missing_rows)
        self.leading = LeaderDuties(self, self.intake, self.transacting, self._leader_asks())
        self.following = FollowerDuties(self, self.index, self._follower_asks())
        self.roles = Roles(self, self.leading, self.following, self.intake, self.index)
        self.takeover = TakeoverProcess(
            self, self.roles, self.leading, self.intake, self.index, clients=self._client_news()
        )
        self.sealing = Sealing(self, self.intake, self.transacting)
        self.calls = Calls(self, self.takeover, self.sealing)
        self.damage = Damage(self, self.roles, self.leading, self.intake)
        self.failing = Failing(self, self.roles, self.leading, self.intake, self.pacer)
        self.reshard_streams = ReshardStreams(self)
        self._backfill_work = BackfillWork(store)
        self.upkeep = Upkeep(self, self.damage, self.pacer)
        self.roles.resume()

    @property
    def leads_alone(self) -> bool:
        """Whether this replica leads, and nobody streams from it."""
        return self.leads and not self.leading.streams

    # --- what parts ask for, by whoever does it --------------------------------------------------

    def _leader_asks(self) -> LeaderAsks:
        return LeaderAsks(
            close_time=self.closed_timestamp.close,
            reads_wait=lambda: self.reads.waits,
            stream_opened=self._stream_opened,
        )

    def _follower_asks(self) -> FollowerAsks:
        return FollowerAsks(
            ack=lambda: self.host.ack(self),
            look_at_reads=self.reads.look,
            state_set=self._state_set,
            time_closed=self._time_closed,
            leader_named=self._leader_named,
        )

    # Who does it is looked up when it is asked for: the parts that ask are made first.

    def _append_entry(self, plan: NewEntry, opaque: int, reply: Reply) -> None:
        self.intake.append_entry(plan, opaque, reply)

    def _missing_rows(self, now: float) -> int | None:
        return self.takeover.missing_rows(now)

    def _stream_opened(self, stream: ProducerStream) -> None:
        self.takeover.stream_opened(stream)

    def _state_set(self, message: SetState) -> None:
        self.takeover.state_set(message)

    def _time_closed(self, news: ClosedTime) -> None:
        self.closed_timestamp.heard(news)

    def _leader_named(self, message: StreamEnd) -> None:
        self.roles.stream_ended(message)

    def _client_news(self) -> ClientNews:
        return ClientNews(
            warn=lambda candidate: self.host.warn_clients(self, candidate),
            tell=lambda: self.host.tell_clients(self),
        )

    def _once_newest(self, answer: Callable[[RezoneError | None], None]) -> None:
        self.reads.submit(None, answer)

    def fail(self, error: Exception) -> None:
        """Go on with nothing, because of this; under any of the replica's locks."""
        if self.failing.failed(error):
            self.host.replica_failed(self)
            self.wake()

    def do_restream(self) -> None:
        """Make the stream from the leader fit the state; without any lock."""
        self.host.restream(self)

    def do_send(self, *, inline: bool) -> None:
        """Have the streams to followers send what was appended; `inline`: by this thread."""
        for stream in tuple(self.leading.streams.values()):
            if inline:
                stream.push()
            else:
                stream.wake()

    def ask_leases(self) -> None:
        """Ask all followers for leases now; under the lock."""
        self.leading.ask_leases()

    def apply_now(self) -> None:
        """Apply what is committed without waiting for more: somebody wants to read it."""
        self.following.apply_now()

    # --- clients ---------------------------------------------------------------------------------

    def write(
        self,
        request: Change,
        prepared: PreparedRows,
        reply: Reply,
        *,
        inline: bool = False,
    ) -> None:
        """Take a write; `reply` is called once, later or at once, unless this raises.

        Behind writes that the job is at work for it waits until that is done, and goes on with all
        others that do.
        """
        if self.intake.shares(request) and self.host.runs(self.job) and not self.closed:
            self.intake.arrivals.add(Arrival(request, prepared, reply))
            self.wake()
            return
        self._take(request, prepared, reply, inline=inline)

    @entry
    def _take(self, request: Change, prepared: PreparedRows, reply: Reply, *, inline: bool) -> None:
        """Append a write, and go on with it; not one that waits its turn."""
        if self._admits(request, prepared, reply):
            self.write_now(request, prepared, reply)
            if inline:
                self.runner.send(inline=True)
            self.move_on(inline=inline)

    def _admits(self, request: Change, prepared: PreparedRows, reply: Reply) -> bool:
        """Whether a write may go on now; not one that is refused, nor one that waits its turn."""
        if self.closed:
            raise NotReadyError(f"partition {self.partition_id} is closing")
        self.host.space.require()
        return not self.pacer.holds_back(request, prepared, reply)

    def _take_arrivals(self) -> None:
        """Append what has come since the job's last run, and send it to the followers."""
        if self.intake.arrivals:
            self._append_arrivals()

    @entry
    def _append_arrivals(self) -> None:
        def take(arrival: Arrival) -> None:
            if self._admits(*arrival):
                self.write_now(*arrival)

        self.intake.append_arrivals(take)
        self.runner.send(inline=True)

    @entry
    def require_may_lead(self) -> None:
        """Refuse a write before anything is made of it, where that would be for nothing.

        NotLeaderError when another replica leads and this one is not about to: a client that has
        not heard of a takeover hears of it at once.
        """
        if not self.leads and not self.transfer.eager:
            raise self.not_leader()

    def write_now(self, request: Change, prepared: PreparedRows, reply: Reply) -> None:
        """Append a write, or hold it while it has to wait; under the lock."""
        if self.must_wait(request, prepared):
            self.intake.hold(request, prepared, reply)
        else:
            self.intake.append(request, prepared, reply)

    def must_wait(self, request: Change, prepared: PreparedRows) -> bool:
        """Whether it will soon be known who takes a write, which is not yet; under the lock.

        Nobody leads, or the leader's node does not know the time, or it is not certain that this
        leader's seal stays, or the rows' part of the range is being taken over: who sends them here
        knows that their source is sealed.
        """
        if self.transfer.blocks_writes or self.transfer.eager:
            return True
        if not self.leads:
            return False
        if not self.clock.gives:
            return True
        begun_in = request.begun_in if isinstance(request, TransactionEnd) else None
        if begun_in is not None and not self.serving.has_source(begun_in):
            return True
        if isinstance(prepared, PreparedOpen):
            home = HashRange(prepared.home, prepared.home + 1)
            return self.is_sealing or not self.serving.hashes(home)()
        return self.is_sealing or not self.serving.has_rows(prepared.rows.column(0))

    # --- the job ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """Sync, apply, commit, answer, ack: whatever is due."""
        self.damage.step()
        self._take_arrivals()
        if self.store.backfilling:
            begun = time.thread_time()
            self._move_on()
            worked = (time.thread_time() - begun) * self._backfill_work.share()
            self.host.foreground.owe(worked * BACKFILL_WEIGHT)
        else:
            self._move_on()
        self.reads.step()
        self.touched(at_once=False)

    def _move_on(self) -> None:
        if self.failure:
            self.failing.leave()
        with self.applying:
            if not self._goes_on():
                return
            damaged = self._try(self._pump_role)
        inline_sends.send_now()
        if damaged is None and self.index.waits:
            with self.applying:
                if self._goes_on():
                    damaged = self._try(self.index.pump)
        if damaged is not None:
            self.damage.found(damaged, at_once=True)
            if self.leadership is not None:
                self.fail(damaged)  # alone in its set: nobody else has the rows
        handing_over = self._end_run()
        if handing_over is not None:
            handing_over.push()

    @entry
    def _end_run(self) -> ProducerStream | None:
        """Let go on what waits for a run of the job; the stream that a takeover ends on."""
        handing_over = self.takeover.step()
        self.pacer.release()
        self.reshard_streams.note_served()
        self.intake.release()
        self.changed.notify_all()
        return handing_over

    def _goes_on(self) -> bool:
        return not (self.closed or self.failure or self.damage.given_up)

    def _pump_role(self) -> None:
        if self.leadership is not None:
            self.leading.pump()
        else:
            self.following.pump()

    def _try(self, duty: Callable[[], None]) -> CorruptionError | None:
        """Do what is due; a replica that cannot has failed, but of damage the caller is told."""
        try:
            duty()
        except CorruptionError as error:
            return error
        except (OSError, RezoneError, AssertionError) as error:
            self.fail(error)
        return None

    @property
    def responds(self) -> bool:
        """Whether the lock is free just now: who holds it may wait for a disk that stalls."""
        free = self.lock.acquire(blocking=False)
        if free:
            self.lock.release()
        return free

    def tick(self, now: float) -> None:
        """Look after what no event wakes; each duty says when to look again.

        Not while another thread has the lock: the thread that ticks is that of all replicas.
        """
        if not self.runner.begin(0):
            return
        try:
            self.due = float("inf")
            if not self.closed:
                self._tick_duties(now)
        except (OSError, RezoneError, AssertionError) as error:
            self.fail(error)
        finally:
            self.runner.end()

    def _tick_duties(self, now: float) -> None:
        if self.leadership is not None:
            self.leading.tick(now)
        else:
            self.following.tick(now)
        self.takeover.tick(now)
        self.pacer.release()
        self.reads.tick(now)
        self.index.tick(now)

    # --- the end ---------------------------------------------------------------------------------

    def retire(self, request: StopReplica) -> None:
        """Stop because the coordinator has assigned the partition to others (ZR-11).

        StaleEpochError when a record of a later epoch is known: that may be the one by which the
        replica is here again, and it is on the disk, as every record is before anything follows
        from it. ConflictError while it leads: it must hand over first.
        """
        self._retire(request)
        self.reads.step()

    @entry
    def _retire(self, request: StopReplica) -> None:
        """Stop in one step: no later record may be taken in between, and then deleted."""
        self.fencing.check(request.fence)
        self.fencing.check_record(request.leader_epoch, request.partition_epoch)
        if self.leads and request.leader_epoch == self.leader_epoch:
            raise ConflictError(
                f"node {self.node_id} leads partition {self.partition_id}; hand it over, "
                "or stop it with a higher leader epoch",
            )
        self._end()
        self.retired = True

    def stop(self) -> None:
        """Answer what waits; nothing is taken any more."""
        self._end()
        self.reads.step()

    @entry
    def _end(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.leading.end_streams("the replica is stopping", None, None)
        self.intake.fail_all(self.not_leader_or_not_ready())
        self.pacer.fail_all(self.not_leader_or_not_ready())
        self.changed.notify_all()

    def close(self) -> None:
        """Stop, and close the store; what was appended is durable afterwards."""
        self.stop()
        with self.applying:
            try:
                self.store.close()
            except (RezoneError, OSError) as error:
                # Damage or a full disk: the next start finds what there is.
                self.log.warning("cannot close in order", error=str(error))

    def abandon(self) -> int:
        """Stop, and let the store go as it is; return up to where the log is durable."""
        self.stop()
        with self.applying:
            durable_end = self.store.durable_end
            self.store.abandon()
        return durable_end

    def destroy(self) -> None:
        """Delete the data of a replica that has stopped. Raises OSError when that fails."""
        with self.applying:
            self.store.destroy()
