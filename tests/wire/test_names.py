"""How the name of a data node is found, where not every question about a name is answered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.chaos import apart

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("cluster_names.py")


def test_a_name_of_the_cluster_needs_no_server_outside(tmp_path: Path) -> None:
    """Asserts that a node is called by its Service's name, and nobody outside is asked for it.

    gRPC's own resolver asks for an IPv6 address as well, at last of the server outside. In a
    cluster whose own server is slow and which reaches no other, calls would end before that does.
    """
    if subprocess.run([*apart.unshare(), "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may make no namespaces here")
    done = subprocess.run(
        [*apart.unshare(), sys.executable, SCRIPT, str(tmp_path / "resolv.conf")],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "answered\n"), done.stderr
