"""What a replica does that cannot go on: a disk that is full or fails, or a fault of its own.

It stops at once. A leader leads no more and ends its streams, a follower ends its own, so that no
write waits for it; the report says that it has failed, and the coordinator takes another leader
from the in-sync set. Everything in its memory counts for nothing from then on: after a failed sync
the kernel may have dropped what it could not write, and calls it clean. So the node opens the
replica again from what its disk has (`datanode.node.reopening`).

Concurrency: `failed` is called under any of the partition's locks; `leave` without any.
"""

import errno

from rezone.datanode.replication.leader import LeaderDuties
from rezone.datanode.replication.roles import Roles
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.writing.pacing import WritePacer
from rezone.datanode.writing.write import WriteIntake
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import DiskTrouble, Role

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_SPACE_TEXT = "no space left"
"""How RocksDB says it: its errors have no number."""


def trouble_of(error: Exception) -> DiskTrouble:
    """Return what an error says of the disk; nothing when it is not of one."""
    if not isinstance(error, OSError):
        return DiskTrouble.NONE
    if isinstance(error, TimeoutError):
        return DiskTrouble.SLOW
    if error.errno in _NO_SPACE or _NO_SPACE_TEXT in str(error).lower():
        return DiskTrouble.FULL
    return DiskTrouble.FAILED


class Failing:
    """The failure of one replica: what of the disk, and what follows from it."""

    def __init__(
        self,
        replica: ReplicaState,
        roles: Roles,
        leading: LeaderDuties,
        intake: WriteIntake,
        pacer: WritePacer,
    ) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._roles = roles
        self._leading = leading
        self._intake = intake
        self._pacer = pacer
        self._left = False
        self.disk = DiskTrouble.NONE

    @entry
    def failed(self, error: Exception) -> bool:
        """Go on with nothing: lead no more, and answer what waits; False if it had failed."""
        replica = self._replica
        if replica.failure:
            return False
        replica.log.error("a replica has failed", error=str(error))
        replica.note_failure(str(error) or type(error).__name__)
        self.disk = trouble_of(error)
        self._step_down()
        refused = NotReadyError(f"the replica has failed: {replica.failure}")
        self._intake.fail_all(refused)
        self._pacer.fail_all(refused)
        replica.touched(at_once=True)
        return True

    @entry
    def step_down_if_stalled(self, stalled_seconds: float) -> None:
        """Fail a leader of which a follower can take the place: the disk does not answer."""
        replica = self._replica
        if self._leading.can_be_replaced and not replica.transfer.blocks_writes:
            why = f"the disk stalls: a sync is under way for {stalled_seconds:.1f} s"
            replica.fail(TimeoutError(why))

    def _step_down(self) -> None:
        """Lead no more; one that is about to hand over has nothing to write, and ends that."""
        replica = self._replica
        if replica.leadership is None or replica.transfer.blocks_writes:
            return
        self._leading.stand_down("the replica has failed")
        replica.take_role(Role.FOLLOWER)  # in memory alone: it writes nothing
        replica.reshard_targets.notify(urgent=True)
        self._roles.clear_transfer()

    def leave(self) -> None:
        """End the stream from the leader, once: its writes shall not wait for this replica."""
        if not self._left:
            self._left = True
            self._replica.restream()
