"""Whether a data node limits what callers send: nobody sees that from outside before it matters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.data_node_start import ANYWHERE, start_of
from replica_cluster import OPERATOR

from rezone.wire.transport import receive_limits

METRIC = "rezone_data_node_receive_limits"
WITHOUT = (
    "from rezone.wire.transport import receive_limits; receive_limits.LIBRARY = 'missing.so'; "
    "from rezone.cli.main import main; main()"
)


@pytest.mark.proves("TR-03")
def test_a_data_node_without_limits_says_so(tmp_path: Path) -> None:
    """Asserts a warning in its log, and a metric of 0: it serves, as wheels have no library.

    Without them an operator believes in limits that a data node does not have.
    """
    command = [sys.executable, "-c", WITHOUT, "data-node", "--node-id=0", f"--data-dir={tmp_path}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REZONE_")}
    environment["PYTHONPATH"] = str(OPERATOR)
    told, metrics = start_of([*command, *ANYWHERE], environment)
    assert [line for line in told if line.get("missing") == "missing.so"]
    assert f"{METRIC} 0.0" in metrics


OF_ANOTHER = """
extern "C" const char* rezone_limits_version() { return "1.2.3"; }
"""


COMMANDS = {
    "module": "import runpy; runpy.run_module('rezone.datanode', run_name='__main__')",
    "command": "from rezone.cli.main import main; main()",
}


def ended_with(library: Path, start: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """Start a data node's process that finds this library, and return how it has ended."""
    found = (
        "import pathlib; from rezone.wire.transport import receive_limits; "
        f"receive_limits.library_path = lambda: pathlib.Path({str(library)!r}); "
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REZONE_")}
    return subprocess.run(
        [sys.executable, "-c", found + start, *words],
        env={**environment, "PYTHONPATH": str(OPERATOR)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize("start", COMMANDS)
@pytest.mark.parametrize("library", ["of another pyarrow", "no library"])
def test_a_library_of_another_pyarrow_is_not_loaded(
    tmp_path: Path, library: str, start: str
) -> None:
    """Asserts that a data node ends with code 2, and one line that says what to do.

    It stays in pyarrow's folder when pyarrow is replaced. Loaded, it would write into classes that
    are not as they were, or end the process without a word.
    """
    path = tmp_path / receive_limits.LIBRARY
    path.write_bytes(b"\x7fELF of another machine")
    if library == "of another pyarrow":
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("g++ is missing")
        made = [compiler, "-x", "c++", "-", "-shared", "-fPIC", "-o", str(path)]
        subprocess.run(made, input=OF_ANOTHER, text=True, check=True)
    words = ["data-node"] if start == "command" else []
    options = ["--node-id=0", f"--data-dir={tmp_path}", "--listen=127.0.0.1:0"]
    options.append("--health=127.0.0.1:0" if start == "command" else "--health-port=0")
    ended = ended_with(path, COMMANDS[start], [*words, *options])
    assert ended.returncode == 2, ended
    (told,) = ended.stderr.splitlines()
    version = "1.2.3" if library == "of another pyarrow" else "an unknown"
    assert told.startswith(f"rezone data-node: {path} is for pyarrow {version}")
    assert "operator/native/build.sh" in told
