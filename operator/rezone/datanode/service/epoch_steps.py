"""Where plaintext is spoken anybody may pretend to be a coordinator, but not one of the far future.

A node remembers the highest epoch it has seen, and refuses lower ones. The true coordinator goes
above what data nodes know (decision 0271), which it can as long as there are higher epochs: the API
server counts acquisitions of a Lease in 32 bits. So an epoch is above the one before by at most
`STEP`, and by more than one only now and then. To use all of them up takes days of calls.

Concurrency: thread-safe.
"""

import threading

from rezone.datanode.settings import Clock
from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import Fence

STEP = 1 << 16
"""A data node that was away for long has missed fewer acquisitions of the Lease."""

PAUSE_SECONDS = 10.0


class EpochSteps:
    """How far, and how often, the epochs that callers name go up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._next = float("-inf")

    def check(self, fence: Fence, known: int) -> None:
        """Raise ForbiddenError for an epoch that cannot be the next after `known`."""
        step = fence.coordinator_epoch - known
        if step <= 1:
            return
        now = self._clock.monotonic()
        with self._lock:
            if step > STEP or now < self._next:
                raise ForbiddenError(
                    f"coordinator epoch {fence.coordinator_epoch} is too far above {known} for a "
                    f"data node without TLS: by at most {STEP}, once in {PAUSE_SECONDS:.0f} s"
                )
            self._next = now + PAUSE_SECONDS
