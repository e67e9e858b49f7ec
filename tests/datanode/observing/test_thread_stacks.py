"""The stacks of threads that end while they are read."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from types import FrameType

import pytest
from replica_cluster import OPERATOR

from rezone.datanode.observing.stacks import ALONE_SECONDS, thread_stacks

ENDING = """
import gc, sys, threading, time, _thread
from rezone.datanode.observing.stacks import thread_stacks

reader = threading.get_ident()

def collecting(phase, info):
    if threading.get_ident() != reader:
        time.sleep(0.0005)

def deep(calls):
    return deep(calls - 1) if calls else threading.Event().wait()

def first(value=1):
    cell, other = [value], {}
    return (lambda: (cell, other))()

def start_more():
    while True:
        _thread.start_new_thread(first, ())
        time.sleep(0.0002)

sys.setswitchinterval(0.0002)
gc.callbacks.append(collecting)
gc.set_threshold(1)
_thread.start_new_thread(start_more, ())
for _ in range(50):
    _thread.start_new_thread(deep, (50,))
stacks = [thread_stacks() for _ in range(1000)]
assert any(" collecting" in each for each in stacks)
assert gc.isenabled() and sys.getswitchinterval() < 0.001
"""
"""Threads that collect garbage before their first line, by a call of Python; deep ones beside them.

With these one reading takes longer than the interpreter leaves to one thread where others wait.
"""


def test_stacks_are_read_of_threads_that_end_within_a_collection() -> None:
    """Asserts that the process lives, and collects and switches as before.

    A data node that is asked for its stacks would die by SIGSEGV once in thousands of times.
    """
    environment = {**os.environ, "PYTHONPATH": str(OPERATOR)}
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], env=environment, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()


def test_nothing_is_collected_and_nobody_else_runs_while_frames_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end by a signal is too rare to fail each time; this is what it takes."""
    held: list[tuple[bool, float]] = []
    current_frames = sys._current_frames

    def frames() -> dict[int, FrameType]:
        held.append((gc.isenabled(), sys.getswitchinterval()))
        return current_frames()

    monkeypatch.setattr(sys, "_current_frames", frames)
    before = sys.getswitchinterval()
    thread_stacks()
    assert held == [(False, ALONE_SECONDS)]
    assert (gc.isenabled(), sys.getswitchinterval()) == (True, before)
