"""Commands beside each other, as `make test` runs the suite."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "hack" / "beside.py"
PAUSE = f"{sys.executable} -X faulthandler -c 'import signal; print(flush=True); signal.pause()'"
LEAVE = f'{sys.executable} -c \'import subprocess; print(subprocess.Popen(["sleep", "600"]).pid)\''


@contextlib.contextmanager
def beside(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """Start commands beside each other."""
    command = [sys.executable, str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        yield process


def run(*arguments: str) -> tuple[int, str, str]:
    """Return the exit code and what was written to standard output and error."""
    with beside(*arguments) as process:
        written, errors = process.communicate()
        return process.returncode, written, errors


@pytest.mark.parametrize(
    ("commands", "code"),
    [
        (("true", "true", "true"), 0),
        (("false", "true", "true"), 1),
        (("true", "false", "true"), 1),
        (("true", "true", "false"), 1),
    ],
)
def test_each_failure_fails(commands: tuple[str, ...], code: int) -> None:
    """A red test in one part of the suite would leave the whole of it green."""
    assert run(*commands)[0] == code


@pytest.mark.parametrize(("code", "shown"), [(0, "two\n"), (1, "one\ntwo\n")])
def test_what_was_written_beside_stands_behind_the_rest(code: int, shown: str) -> None:
    """Two reports of failures would be mixed up line by line, or one be lost among what is well."""
    program = f"import sys; print('one', flush=True); sys.stderr.write('two\\n'); sys.exit({code})"
    one = f'{sys.executable} -c "{program}"'

    _, written, _ = run("echo other", one, "echo third")

    assert written.startswith("other\n")
    assert written.split(f"beside it: {one}\n")[1].split("\n==")[0] == shown
    assert written.endswith("beside it: echo third\nthird\n")


def test_all_end_with_what_has_started_them() -> None:
    """A run of the suite that is ended would leave half of it behind, with all it has started."""
    with beside(PAUSE, PAUSE, PAUSE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()

        assert process.wait(timeout=30) == 1


def test_what_hangs_says_where_and_is_ended() -> None:
    """A test that waits for ever would leave the one who waits for the suite with no word."""
    code, written, errors = run("--minutes", "0.01", PAUSE, "true")

    assert code == 1
    assert "not over after 0.01 minutes" in written
    assert "Fatal Python error: Aborted" in errors


@pytest.mark.slow
@pytest.mark.parametrize("command", ["true", "false"])
def test_a_process_that_is_left_behind_is_named_and_ended(command: str) -> None:
    """It would hold the pipe open on whose end CI waits, for all of its time, or take a port."""
    code, written, _ = run(LEAVE, command)

    assert code == 1
    assert "left behind, ended now: sleep 600" in written
    with pytest.raises(ProcessLookupError):
        os.kill(int(written.split()[0]), signal.SIGTERM)
