"""What hangs in the suite ends it, and says where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import hangs
from hangs import *

hangs.HANG_SECONDS_MAX = 0.1
"""

IN_A_CALL = """
import signal, threading

def test_it():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    threading.Event().wait()
"""

BEHIND_A_FAILURE = """
import pytest, threading

@pytest.fixture
def it():
    yield
    threading.Event().wait()

def test_it(it):
    assert 1 == 2
"""

BEHIND_THE_LAST_TEST = """
import threading

def test_it():
    threading.Thread(target=threading.Event().wait).start()
"""


def run(directory: Path, test: str) -> tuple[int, str]:
    """Return how a run of a test ended, and what stood on the terminal."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(test)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-o", "timeout=0.1", "--rootdir=.", "-p"]
    done = subprocess.run(
        [*command, "no:cacheprovider"],
        check=False,
        capture_output=True,
        cwd=directory,
        env=environment,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "at"),
    [
        (IN_A_CALL, "line 6 in test_it"),
        (BEHIND_A_FAILURE, "line 7 in it"),
        (BEHIND_THE_LAST_TEST, "in _bootstrap_inner"),
    ],
    ids=["in a call", "behind a failure", "behind the last test"],
)
def test_what_hangs_is_ended_and_says_where(tmp_path: Path, test: str, at: str) -> None:
    """CI would come to the end of its time, and nobody would know which test it was."""
    code, written = run(tmp_path, test)

    assert code == 1, written
    assert at in written


def test_why_a_test_failed_is_told_before_its_fixtures_hang(tmp_path: Path) -> None:
    """Of a run that is ended there is no report."""
    _, written = run(tmp_path, BEHIND_A_FAILURE)

    assert "test_it.py::test_it: AssertionError: assert 1 == 2" in written
