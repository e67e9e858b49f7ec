"""Nothing of the product goes on running behind the module of tests that has started it.

A data node that was never closed writes into the output of later tests, counts among their threads,
and keeps channels open for which Flight waits at the process's end.
"""

import re
import threading
import time
from collections.abc import Iterator

import pytest

LEAVE_SECONDS = 5.0
"""Threads that were told to end may need a moment: one looks each second whether it shall."""

_LIBRARIES = re.compile(r"Thread-|Dummy-|asyncio_|AnyIO|ThreadPoolExecutor-")
"""How threads are named that the product has not: a call of gRPC's threads makes them dummies."""


@pytest.fixture(scope="module", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail when threads that the module's tests have started do not end."""
    before = {*threading.enumerate()}
    yield
    until = time.monotonic() + LEAVE_SECONDS
    for thread in _ours() - before:
        thread.join(max(until - time.monotonic(), 0))
    left = sorted(thread.name for thread in _ours() - before)
    assert not left, f"threads go on behind these tests: {left}"


def _ours() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if not _LIBRARIES.match(each.name)}
