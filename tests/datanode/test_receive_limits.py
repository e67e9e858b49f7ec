"""Whether a data node limits what callers send: nobody sees that from outside before it matters."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
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
    told = []
    with subprocess.Popen(
        [*command, "--listen=127.0.0.1:0", "--health=127.0.0.1:0"],
        env={**environment, "PYTHONPATH": str(OPERATOR)},
        stdout=subprocess.PIPE,
        text=True,
    ) as node:
        try:
            assert node.stdout is not None
            for line in node.stdout:
                told.append(json.loads(line))
                if told[-1]["event"] == "serving":
                    break
            asking = http.client.HTTPConnection("127.0.0.1", told[-1]["health_port"], timeout=30)
            with contextlib.closing(asking):
                asking.request("GET", "/metrics")
                metrics = asking.getresponse().read().decode().splitlines()
        finally:
            node.kill()
    assert [line for line in told if line.get("missing") == "missing.so"]
    assert f"{METRIC} 0.0" in metrics
