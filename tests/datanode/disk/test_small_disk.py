"""A named feed on a disk that is smaller than what the feed may keep, by a real data node."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.chaos import apart

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("small_disk_run.py")
DISK_BYTES = 384 << 20


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run a data node on a disk of its own; return what happened there."""
    if subprocess.run([*apart.unshare(), "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may make no namespaces here")
    directory = tmp_path_factory.mktemp("small-disk")
    paths = (ROOT / "operator", ROOT / "tests", ROOT / "tests" / "datanode", ROOT)
    done = subprocess.run(
        [*apart.unshare(), sys.executable, SCRIPT, str(directory), str(DISK_BYTES)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow
@pytest.mark.proves("CF-04")
def test_a_disk_does_not_fill_because_of_a_feed(found: dict[str, Any]) -> None:
    """Writers would be refused, and the node leave its leaderships, for who never reads."""
    assert found["written"] > DISK_BYTES / 1024
    assert found["disk"] == "", "the node has not once said that its disk is full"
    assert found["free_least"] > 0


@pytest.mark.slow
@pytest.mark.proves("CF-04")
def test_the_feed_has_what_the_disk_has_room_for_and_is_told(found: dict[str, Any]) -> None:
    """A log that is trimmed as if there was no feed passes the test above, and keeps nothing."""
    assert found["log_most"] > DISK_BYTES / 4
    assert found["told"] == "FeedTruncatedError"
