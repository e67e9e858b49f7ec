"""What a replica does about rows or log that no longer match their checksums.

Whoever comes upon damage gets an error, never the rows; here is what follows from it.

- Old log that the engine has applied is given up: who still needs it gets a snapshot.
- A follower gives its rows up and is copied again; until then it counts for nobody as in sync.
- A leader says so in its report and goes on with what it can read until the coordinator has had
  it hand over; then it does as a follower. One that can no longer apply steps down at once, and
  the coordinator takes another from the in-sync set.
- A leader that is alone in its set keeps what it has: it may be the last copy.

Concurrency: `noticed` is called under any locks; the rest runs as the partition's job.
"""

from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.replication.roles import Roles
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.write import WriteIntake
from rezone.wire.errors import CorruptionError, NotReadyError
from rezone.wire.messages import Role


class Damage:
    """The damage of one replica; `reason` stands until the partition has been copied again."""

    def __init__(
        self, replica: ReplicaState, roles: Roles, leading: LeaderDuties, intake: WriteIntake
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._roles = roles
        self._leading = leading
        self._intake = intake
        self._noticed: CorruptionError | None = None
        replica.store.tell_damage(self.noticed)

    @property
    def reason(self) -> str:
        """What was found; empty when nothing was."""
        return self._replica.store.meta.damage

    @property
    def given_up(self) -> bool:
        """Whether the rows here count for nothing any more because of it."""
        meta = self._replica.store.meta
        return bool(meta.damage) and meta.needs_snapshot

    def noticed(self, error: CorruptionError) -> None:
        """Have the partition's job look after damage that somebody has come upon."""
        self._noticed = self._noticed or error
        self._replica.wake()

    def step(self) -> None:
        """Look after what was noticed since; without locks."""
        error, self._noticed = self._noticed, None
        if error is None or self._replica.closed:
            return
        offset = error.details.get("log_offset")
        if isinstance(offset, int) and self._gives_up_log(offset):
            return
        self.found(error, at_once=False)

    def _gives_up_log(self, offset: int) -> bool:
        replica = self._replica
        try:
            with replica.applying:
                given_up = replica.store.give_up_log(offset)
        except CorruptionError:
            return False
        if given_up:
            replica.log.warning("damaged log is given up", end=replica.store.log_start)
        return given_up

    @entry
    def found(self, error: CorruptionError, *, at_once: bool) -> None:
        """Persist the damage, and leave; `at_once`: this replica cannot go on leading."""
        replica = self._replica
        if self.given_up:
            return
        if not self.reason:
            replica.log.error("damaged", error=str(error))
            replica.store.update_meta(damage=str(error))
        if replica.leadership is None:
            replica.need_snapshot()
        elif at_once and len(replica.record.isr) > 1:
            self._step_down()
        replica.touched(at_once=True)
        replica.restream()

    def _step_down(self) -> None:
        """Lead no more; the coordinator hears of it in the report."""
        replica = self._replica
        replica.need_snapshot()
        self._leading.end(replica.record.leader, replica.record.leader_epoch)
        self._roles.clear_transfer()
        self._intake.fail_all(
            NotReadyError(f"partition {replica.partition_id} is damaged here; retry")
        )
        assert replica.role is Role.LEARNER, "who has stepped down leads nothing"  # noqa: S101 - invariant
