"""Whether a data node limits what callers send: nobody sees that from outside before it matters."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from e2e.data_node_start import ANYWHERE, start_of
from replica_cluster import OPERATOR

from rezone.cli.run import data_node
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


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize("library", ["of another pyarrow", "no library"])
def test_a_library_of_another_pyarrow_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """Asserts that a data node ends with code 2, and says what to do, before anything is called.

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
    monkeypatch.setattr(receive_limits, "library_path", lambda: path)
    monkeypatch.delitem(sys.modules, "pyarrow._flight", raising=False)
    words = ["--node-id=0", f"--data-dir={tmp_path}", *ANYWHERE]
    ended = CliRunner().invoke(data_node, words)
    assert ended.exit_code == 2
    assert f"for pyarrow {'1.2.3' if library == 'of another pyarrow' else 'an unknown'}" in (
        ended.output
    )
    assert "operator/native/build.sh" in ended.output
