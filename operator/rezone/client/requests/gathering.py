"""What begins requests of calls that are made together: once all of the calls have come.

Otherwise the first call for a partition would have a request of its own, and the others the next.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

Step = Callable[[], None]


class Gathering(threading.local):
    """The steps of this thread that wait for the end of the calls it makes together."""

    def __init__(self) -> None:
        self._steps: deque[Step] | None = None

    def begin(self, step: Step) -> None:
        """Run what begins a request: at once, or at the end of `calls`, as often as it is given."""
        if self._steps is None:
            step()
        else:
            self._steps.append(step)

    def release(self) -> None:
        """Run the steps so far: this thread is about to wait for what they lead to."""
        while self._steps:
            self._steps.popleft()()

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Make calls together: requests begin, in the order of their steps, when it ends."""
        self._steps = deque()
        try:
            yield
        finally:
            try:
                # A step may give others: a request is queued, and then its connection is told.
                self.release()
            finally:
                self._steps = None
