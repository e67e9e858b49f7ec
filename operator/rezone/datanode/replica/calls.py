"""What control calls do to one replica, each as one step.

What a call is fenced by is on the disk, or known until a restart, before it takes effect.

Concurrency: every method is an `entry`.
"""

from rezone.datanode.core.copy_intake import Compared, Trust, compare
from rezone.datanode.ownership.sealing import Sealing
from rezone.datanode.replication.takeover import TakeoverProcess
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry, entry_alone
from rezone.wire.messages import Fence, NoteCompared, Seal, Takeover


class Calls:
    """The control calls of one replica that are not those of its roles."""

    def __init__(self, replica: ReplicaState, takeover: TakeoverProcess, sealing: Sealing) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._takeover = takeover
        self._sealing = sealing

    @entry
    def check_fence(self, fence: Fence) -> None:
        """Refuse a call of an older coordinator or trigger."""
        self._replica.fencing.check(fence)

    @entry
    def check_revision(self, revision: int) -> None:
        """Refuse what an older trigger asks for."""
        self._replica.fencing.check_revision(revision)

    @entry
    def note_pull(self, fence: Fence) -> None:
        """Remember who has ordered a copy."""
        self._replica.fencing.persist(fence)
        self._replica.touched(at_once=True)

    @entry
    def admit_copy(self, fence: Fence, bytes_per_second_max: int, seconds: float) -> None:
        """Let a copy that another node sends begin."""
        self._replica.fencing.check(fence)
        self._replica.admission.admit(bytes_per_second_max, seconds)

    @entry
    def hand_over(self, request: Takeover) -> None:
        """Begin a leader transfer (DCP-09); the caller has it persisted after this."""
        self._replica.fencing.persist(request.fence, durable=False)
        self._replica.touched(at_once=True)
        self._takeover.start(request)

    @entry
    def seal(self, request: Seal) -> None:
        """Have the partition end."""
        self._replica.fencing.persist(request.fence)
        self._sealing.start(request)
        self._replica.wake()

    @entry
    def require_whole(self) -> None:
        """Refuse with NotLeaderError where a follower does not have all of its range yet."""
        if not self._replica.leads and not self._replica.serving.whole:
            raise self._replica.not_leader()

    @entry_alone
    def note_compared(self, request: NoteCompared) -> None:
        """Note that the copy equals its source; nothing when another one was made since."""
        replica = self._replica
        with replica.guarding():
            persisted = replica.fencing.check(request.fence)
            compared = Compared(request.uncompared, replica.store.meta.uncompared)
            if isinstance(compare(compared), Trust):
                persisted["uncompared"] = ""
            replica.store.update_meta(**persisted)
