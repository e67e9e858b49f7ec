"""Rates of clients and support bundles by way of a real API server's proxy to real data nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.chaos import apart
from e2e.proxied.__main__ import NODES
from rezone.local.tools import CONTROL_PLANE, find_tools

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
@pytest.mark.proves("OB-04", "OB-07")
def test_rates_and_bundles_come_through_the_api_server(tmp_path: Path) -> None:
    """With the rights of whoever looks, or `rezone top` would show no rate on any cluster.

    Support bundles would lack what data nodes say of themselves.
    """
    apart.find_system_programs()
    try:
        apart.check_machine()
    except apart.UnfitMachineError as error:
        pytest.skip(str(error))
    find_tools([*CONTROL_PLANE, "kubectl"])
    done = subprocess.run(
        [*apart.unshare(), sys.executable, "-m", "e2e.proxied", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, apart.INSIDE: "1", "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    top = found["top"]
    assert top.get("ratesUnknown", "") == ""
    assert top["rates"]["writes"]["perSecond"] > 0
    assert top["rates"]["reads"]["perSecond"] > 0
    assert [node["rates"]["writes"]["perSecond"] > 0 for node in top["nodes"]] == [True] * NODES
    said = [name for name in found["bundle"] if "metrics" in name and "rates-" in name]
    assert len(said) == NODES, found["bundle"]
