"""Two commands beside each other, as `make test` runs the suite."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "hack" / "beside.py"


@pytest.mark.parametrize(
    ("beside", "other", "code"),
    [("true", "true", 0), ("false", "true", 1), ("true", "false", 1)],
)
def test_either_failure_fails(beside: str, other: str, code: int) -> None:
    """A red test in one half of the suite would leave the whole of it green."""
    command = [sys.executable, str(SCRIPT), beside, other]
    assert subprocess.run(command, check=False, capture_output=True).returncode == code


def test_what_was_written_beside_stands_behind_the_rest() -> None:
    """Two reports of failures would be mixed up line by line, or one be lost."""
    code = "import sys; print('beside', file=sys.stderr)"
    command = [sys.executable, str(SCRIPT), f'{sys.executable} -c "{code}"', "echo other"]

    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert written.startswith("other\n")
    assert written.endswith("beside\n")


def test_both_end_with_what_has_started_them() -> None:
    """A run of the suite that is ended would leave half of it behind, with all it has started."""
    begun = f"{sys.executable} -c 'import signal; print(flush=True); signal.pause()'"
    command = [sys.executable, str(SCRIPT), begun, begun]

    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()

        assert process.wait(timeout=30) == 1
