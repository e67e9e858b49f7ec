"""Whether others may begin to copy to a replica here, as the operator last said (B-03).

A node that pulls was asked to by the operator; whoever pushes, a Spark task, must be admitted. An
admission ends by itself: without an operator nothing begins, and what has begun goes on. It is not
persisted: a node that was restarted waits for the operator's next word.

Concurrency: any thread; each field is written as a whole.
"""

from collections.abc import Callable

from rezone.wire.errors import NotAdmittedError
from rezone.wire.messages import PartitionId

NEVER = float("-inf")


class Admission:
    """The admission of one replica's copy.

    `bytes_per_second_max` is this copy's part of the zone's rate, 0 without a limit; None when the
    operator has not said. It stays when the admission is over: the copy may have begun.
    """

    def __init__(self, partition: PartitionId, monotonic: Callable[[], float]) -> None:
        self.bytes_per_second_max: int | None = None
        self._partition = partition
        self._monotonic = monotonic
        self._until = NEVER

    def admit(self, bytes_per_second_max: int, seconds: float) -> None:
        """Let a copy begin within so many seconds from now."""
        self.bytes_per_second_max = bytes_per_second_max
        self._until = self._monotonic() + seconds

    def hold(self) -> None:
        """Let no copy begin; one that has begun goes on."""
        self._until = NEVER

    @property
    def admitted(self) -> bool:
        """Whether a copy may begin now."""
        return self._monotonic() < self._until

    def require(self) -> None:
        """Raise NotAdmittedError unless a copy may begin now."""
        if not self.admitted:
            raise NotAdmittedError(f"the copy of partition {self._partition} has to wait its turn")
