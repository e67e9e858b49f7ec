"""What each thread does now: names, files and lines; never values, which may be rows.

Concurrency: any thread, also within a signal handler; one after the other.
"""

import contextlib
import gc
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType

THREADS_MAX = 256
FRAMES_MAX = 64

ALONE_SECONDS = 1.0
"""For so long no other thread asks for the interpreter: far longer than stacks take to be read."""

_READING = threading.RLock()


def thread_stacks() -> str:
    """Return the stack of each thread of this process, the innermost call last."""
    names: Mapping[int | None, str] = {each.ident: each.name for each in threading.enumerate()}
    with _alone():
        frames = sys._current_frames()  # noqa: SLF001 - documented; faulthandler has no names
        lines = [f"{len(frames)} threads"]
        for ident, frame in itertools.islice(frames.items(), THREADS_MAX):
            lines += ["", names.get(ident, f"thread {ident}"), *_stack(frame)]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Have no other thread run Python meanwhile, and no garbage be collected.

    Where a call ends while its frame is held, CPython 3.11 may leave its caller's freed memory in
    it: of a call that a collection made before its thread's first line. Who follows that dies.
    """
    with _READING:
        interval, collects = sys.getswitchinterval(), gc.isenabled()
        sys.setswitchinterval(ALONE_SECONDS)
        try:
            time.sleep(2 * interval)  # who waits by the old interval has its turn first
            gc.disable()
            yield
        finally:
            sys.setswitchinterval(interval)
            if collects:
                gc.enable()


def _stack(frame: FrameType) -> list[str]:
    """Return a line for each call. No file is read, so that this costs little."""
    calls = itertools.islice(traceback.walk_stack(frame), FRAMES_MAX)
    lines = [
        f"  {each.f_code.co_filename}:{number} {each.f_code.co_name}" for each, number in calls
    ]
    return lines[::-1]
