"""The data node's image as users get it: limits of what it receives are in force (decision 503).

Their library is compiled while the image is built. What compiles it must not be in the image.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.data_node_start import ANYWHERE, start_of
from e2e.kind import host
from e2e.kind.command import Step, run
from e2e.kind.places import Places, default_places

ROOT = Path(__file__).parents[1]
TAG = "limits"
IMAGE = f"rezone-dev/rezone-data-node:{TAG}"
BUILT_SECONDS = 1800.0
LIBRARY = "librezone_limits.so"
COMPILERS = ("g++", "gcc", "c++", "cc", "ld", "as", "clang", "cc1plus")

pytestmark = [pytest.mark.timeout(2400), pytest.mark.proves("TR-03")]


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    """Build the image with a Docker daemon of our own; one that ran before goes on."""
    places = default_places()
    ran = host.runs(places)
    host.prepare(places)
    try:
        with Step(f"building {IMAGE}"):
            script = str(ROOT / "hack" / "images.py")
            command = [sys.executable, script, "--tag", TAG, "data-node"]
            run(command, env=places.environment(), timeout_seconds=BUILT_SECONDS)
        yield places
    finally:
        if not ran:
            host.stop_docker(places)


def in_image(*options: str) -> list[str]:
    """Return the command that runs the image as a pod does: its user, and a root that is read."""
    limits = ("--read-only", "--cap-drop=ALL", "--tmpfs=/tmp", "--tmpfs=/data:uid=65532")
    return ["docker", "run", "--rm", "--network=host", *limits, *options]


def test_no_compiler_is_left_in_the_image(places: Places) -> None:
    """Asserts that the library is there, and nothing that made it.

    Without it whoever gets into a data node finds a compiler there, and the image is 200 MB larger.
    """
    # As root: every directory is to be seen.
    look = ("--user=0", "--network=none", "--entrypoint=/usr/bin/find", IMAGE)
    command = ["docker", "run", "--rm", *look, "/", "-xdev", "-type", "f,l", "-printf", "%f\n"]
    listed = run(command, env=places.environment()).split("\n")
    assert LIBRARY in listed
    assert not {*COMPILERS} & {*listed}


def test_a_data_node_of_the_image_keeps_the_limits(places: Places) -> None:
    """Asserts that its command loads the library, and Flight's server goes by it.

    Without it one message of a megabyte may fill the memory of each data node in production.
    """
    command = [*in_image("--init", IMAGE), "data-node", "--node-id=0", "--data-dir=/data"]
    told, metrics = start_of([*command, *ANYWHERE], places.environment())
    assert not [line for line in told if line.get("missing") == LIBRARY]
    assert "rezone_data_node_receive_limits 1.0" in metrics
