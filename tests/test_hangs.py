"""What hangs in the suite ends it, and says where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
import hangs
from hangs import *

hangs.HANG_SECONDS_MAX = 0.5
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

WITH_A_THREAD = """
import threading

def test_it():
    threading.Thread(target=threading.Event().wait).start()
"""

WITH_AN_OPEN_CHANNEL = """
import threading
from pyarrow import flight

begun = threading.Event()

class Server(flight.FlightServerBase):
    def do_exchange(self, *_):
        begun.set()
        threading.Event().wait()

def test_it():
    global both
    server = Server("grpc://127.0.0.1:0")
    client = flight.connect(f"grpc://127.0.0.1:{server.port}")
    both = server, client, client.do_exchange(flight.FlightDescriptor.for_command(b""))
    begun.wait()
"""

WITH_MUCH_TO_DELETE = """
import threading

class Disk:
    def pytest_sessionfinish(self):
        threading.Event().wait(1.0)

def test_it(request):
    request.config.pluginmanager.register(Disk())
"""


def run(directory: Path, test: str) -> tuple[int, str]:
    """Return how a run of a test ended, and what stood on the terminal."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_it.py").write_text(test)
    path = os.pathsep.join(sys.path)
    alone = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = ["-p", "pytest_timeout", "-p", "no:cacheprovider", "-o", "timeout=0.5"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir=.", *options],
        check=False,
        capture_output=True,
        cwd=directory,
        env={**os.environ, **alone},
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "at"),
    [
        (IN_A_CALL, "line 6 in test_it"),
        (BEHIND_A_FAILURE, "line 7 in it"),
    ],
    ids=["in a call", "behind a failure"],
)
def test_what_hangs_is_ended_and_says_where(tmp_path: Path, test: str, at: str) -> None:
    """CI would come to the end of its time, and nobody would know which test it was."""
    code, written = run(tmp_path, test)

    assert code == 1, written
    assert at in written


@pytest.mark.slow
@pytest.mark.parametrize(
    "test", [WITH_A_THREAD, WITH_AN_OPEN_CHANNEL], ids=["a thread", "a channel"]
)
def test_what_is_left_running_is_not_waited_for(tmp_path: Path, test: str) -> None:
    """One failed test beside a server, and the suite would never end."""
    code, written = run(tmp_path, test)

    assert code == 0, written


@pytest.mark.slow
def test_the_end_of_a_run_has_more_time_than_a_fixture(tmp_path: Path) -> None:
    """What earlier runs have left is deleted there: 3,000 passed tests would count as failed."""
    code, written = run(tmp_path, WITH_MUCH_TO_DELETE)

    assert code == 0, written


def test_why_a_test_failed_is_told_before_its_fixtures_hang(tmp_path: Path) -> None:
    """Of a run that is ended there is no report."""
    _, written = run(tmp_path, BEHIND_A_FAILURE)

    assert "test_it.py::test_it: AssertionError: assert 1 == 2" in written
