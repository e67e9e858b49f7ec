"""Whether a data node limits what callers send: nobody sees that from outside before it matters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from e2e.data_node_start import ANYWHERE, start_of
from replica_cluster import OPERATOR

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
