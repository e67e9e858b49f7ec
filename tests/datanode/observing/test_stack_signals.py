"""`kill -USR1` shows what a data node does, and never ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from besieged_node import P, besieged_node
from replica_cluster import OPERATOR
from secure_cluster import of_zone

from rezone.client import ClientSettings
from rezone.wire.errors import RezoneError
from rezone.wire.messages import ScanTicket
from rezone.wire.transport.channel import CHANNEL_ERRORS
from rezone.wire.transport.identity import Role

SIGNALS = 100
PATIENT = ClientSettings(timeout_seconds=30.0)
"""A stack of each thread is written between two writes, on a busy machine."""


@pytest.mark.slow
def test_stacks_are_shown_while_streams_break_off(tmp_path: Path) -> None:
    """The stacks of threads that end were read while they ended, and the process died of that."""
    with besieged_node(tmp_path) as besieged, besieged.honest(PATIENT) as table:
        besieged.write(table)
        process = besieged.node.process
        assert process is not None
        stop = threading.Event()

        def break_off() -> None:
            while not stop.is_set():
                client = besieged.c.as_(of_zone(Role.WRITER))
                # On a busy machine the node may have no time for a call.
                with contextlib.suppress(RezoneError, *CHANNEL_ERRORS):
                    for _ in range(10):
                        client.get(ScanTicket(partition=P)).cancel()
                client.close()

        callers = [threading.Thread(target=break_off, daemon=True) for _ in range(3)]
        for each in callers:
            each.start()
        try:
            for _ in range(SIGNALS):
                process.send_signal(signal.SIGUSR1)
                besieged.write(table)
        finally:
            stop.set()
            for each in callers:
                each.join(60)
        assert process.poll() is None
        log = (besieged.node.directory / "log.txt").read_text()
        assert "stop_signals.py" in log


WITHIN = """
import signal
from rezone.datanode.service.stop_signals import STACKS_SIGNAL, StopSignals

told = []

def stacks():
    told.append(1)
    signal.raise_signal(STACKS_SIGNAL)
    return "stacks"

StopSignals(stacks)
signal.raise_signal(STACKS_SIGNAL)
assert len(told) == 1, told
signal.raise_signal(STACKS_SIGNAL)
assert len(told) == 2, told
"""


def test_a_signal_that_comes_while_stacks_are_told_is_not_told_of() -> None:
    """Each would be told of within the one before, until the process ends of a RecursionError."""
    environment = {**os.environ, "PYTHONPATH": str(OPERATOR)}
    ended = subprocess.run(
        [sys.executable, "-c", WITHIN], env=environment, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
