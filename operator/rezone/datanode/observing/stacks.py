"""What each thread does now: names, files and lines; never values, which may be rows."""

import itertools
import sys
import threading
import traceback
from collections.abc import Mapping
from types import FrameType

THREADS_MAX = 256
FRAMES_MAX = 64


def thread_stacks() -> str:
    """Return the stack of each thread of this process, the innermost call last."""
    names: Mapping[int | None, str] = {each.ident: each.name for each in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - documented; faulthandler has no names
    lines = [f"{len(frames)} threads"]
    for ident, frame in itertools.islice(frames.items(), THREADS_MAX):
        lines += ["", names.get(ident, f"thread {ident}"), *_stack(frame)]
    return "\n".join(lines) + "\n"


def _stack(frame: FrameType) -> list[str]:
    """Return a line for each call. No file is read, so that this costs little."""
    calls = itertools.islice(traceback.walk_stack(frame), FRAMES_MAX)
    lines = [
        f"  {each.f_code.co_filename}:{number} {each.f_code.co_name}" for each, number in calls
    ]
    return lines[::-1]
