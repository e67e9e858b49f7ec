"""What a replica does that cannot go on: a disk that is full or fails, or a fault of its own.

It stops at once. A leader leads no more and ends its streams, a follower ends its own, so that no
write waits for it; the report says that it has failed, and the coordinator takes another leader
from the in-sync set. Everything in its memory counts for nothing from then on: after a failed sync
the kernel may have dropped what it could not write, and calls it clean. So the node opens the
replica again from what its disk has (`datanode.node.reopening`).

Concurrency: `failed` is called under any of the partition's locks; `leave` without any.
"""

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rezone.wire.errors import NotReadyError
from rezone.wire.messages import DiskTrouble

if TYPE_CHECKING:
    from rezone.datanode.replica.replica import Replica

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
    """The failure of one replica: why, what of the disk, and what follows from it."""

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica
        self._left = False
        self.why = ""
        self.disk = DiskTrouble.NONE

    def failed(self, error: Exception) -> None:
        """Go on with nothing: lead no more, answer what waits, and say so."""
        replica = self._replica
        with replica.lock:
            if self.why:
                return
            replica.log.error("a replica has failed", error=str(error))
            self.why = str(error) or type(error).__name__
            self.disk = trouble_of(error)
            self._step_down()
            refused = NotReadyError(f"the replica has failed: {self.why}")
            replica.intake.fail_all(refused)
            replica.pacer.fail_all(refused)
        replica.touched(at_once=True)
        replica.host.replica_failed(replica)
        replica.wake()

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Fail where the disk does; NotReadyError for whoever has asked, who asks again."""
        try:
            yield
        except OSError as error:
            self.failed(error)
            raise NotReadyError(f"the replica has failed: {error}") from error

    def stand_aside(self, stalled_seconds: float) -> None:
        """Fail a leader of which a follower can take the place: the disk does not answer."""
        replica = self._replica
        with replica.lock:
            if replica.leading.can_be_replaced and not replica.takeover.blocks_writes:
                why = f"the disk stalls: a sync is under way for {stalled_seconds:.1f} s"
                self.failed(TimeoutError(why))

    def _step_down(self) -> None:
        """Lead no more; one that is about to hand over has nothing to write, and ends that."""
        replica = self._replica
        if replica.leading.state is None or replica.takeover.blocks_writes:
            return
        replica.leading.stand_down("the replica has failed")
        replica.roles.stand_down()
        replica.importers.ring(urgent=True)
        replica.takeover.clear()

    def leave(self) -> None:
        """End the stream from the leader, once: its writes shall not wait for this replica."""
        if not self._left:
            self._left = True
            self._replica.host.restream(self._replica)
