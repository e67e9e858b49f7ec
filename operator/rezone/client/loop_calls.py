"""The calls of one event loop: made together once in each turn of the loop, and awaited.

Calls that coroutines make in one turn are begun at its end, by the loop's own thread as long as
nothing keeps it waiting, by a thread of their own else. Answers come by other threads, which wake
the loop once for all that it has not looked at.

Concurrency: `call` and `close` by the loop's thread. Calls begin in their order.
"""

import asyncio
import contextlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rezone.client.operations.calls_together import CallsTogether, Kind, OneCall
from rezone.client.requests.batches import Rows
from rezone.client.requests.calls import Ended
from rezone.client.settings import closed_error

Found = asyncio.Future[list[Any]]


class LoopCalls:
    """Makes calls of the coroutines of one event loop."""

    def __init__(self, calls: CallsTogether) -> None:
        self._calls = calls
        self._loop = asyncio.get_running_loop()
        self._made: list[OneCall] = []
        self._ended: deque[tuple[Found, list[Any] | BaseException]] = deque()
        self._is_told = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rezone-submit")
        self._with_thread = 0

    def call(self, kind: Kind, rows: Rows) -> Found:
        """Make a call at the end of this turn; the future has what it ends with.

        TypeError for what has no number of rows.
        """
        len(rows)  # here, where it is its caller's error, and not that of all calls of the turn
        future: Found = self._loop.create_future()
        if not self._made:
            self._loop.call_soon(self._begin)
        self._made.append(OneCall(kind, rows, self._ending(future)))
        return future

    def close(self) -> None:
        """End the thread; what has not begun ends with an error."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        made, self._made = self._made, []
        if not self._with_thread and self._calls.is_prompt(made):
            self._calls.submit(made)
            return
        try:
            begun = self._loop.run_in_executor(self._thread, self._calls.submit, made)
        except RuntimeError:
            _end(made)
            return
        self._with_thread += 1
        begun.add_done_callback(lambda done: self._begun(made, done))

    def _begun(self, made: list[OneCall], done: "asyncio.Future[None]") -> None:
        self._with_thread -= 1
        if done.cancelled():
            _end(made)

    def _ending(self, future: Found) -> Ended:
        def ended(outcome: list[Any] | BaseException) -> None:
            self._ended.append((future, outcome))
            if not self._is_told:
                self._is_told = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    self._loop.call_soon_threadsafe(self._tell)

        return ended

    def _tell(self) -> None:
        # First: who comes from here on wakes the loop again.
        self._is_told = False
        while self._ended:
            future, outcome = self._ended.popleft()
            if future.done():
                continue  # its coroutine was cancelled
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


def _end(calls: list[OneCall]) -> None:
    """End calls that were made, and not begun before the client was closed."""
    for call in calls:
        call.ended(closed_error())
