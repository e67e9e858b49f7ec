"""The bytes of one channel's frames that its consumer has not shown to have read.

Frames are read in the order in which they were sent. So an ack of entries shows that they and all
before them were read, and a grant of leases that all before its request was. What the consumer
shows is capped by what was sent.

Concurrency: guarded by the channel's lock.
"""

from collections import deque

from rezone.datanode.commit.lease import ROUNDS_OPEN_MAX

FRAME_BYTES = 64
"""What Flight, gRPC and HTTP/2 put around a frame, at most."""


class SentFrames:
    """Counts them, by the total of all bytes that were sent up to a frame."""

    def __init__(self) -> None:
        self.total = 0
        self._read = 0
        self._rounds: deque[tuple[int, int]] = deque(maxlen=ROUNDS_OPEN_MAX)

    @property
    def unread_bytes(self) -> int:
        """The bytes that the consumer may not have read yet."""
        return self.total - self._read

    def sent(self, size: int) -> None:
        """Note a frame that leaves."""
        self.total += size + FRAME_BYTES

    def asked(self, number: int) -> None:
        """Note a round of leases whose request leaves next."""
        self._rounds.append((number, self.total))

    def granted(self, number: int) -> None:
        """Note that the request of a round was answered."""
        while self._rounds and self._rounds[0][0] <= number:
            self.read(self._rounds.popleft()[1])

    def read(self, total: int) -> None:
        """Note that all was read up to a total of bytes."""
        self._read = max(self._read, total)
