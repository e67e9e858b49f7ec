"""Files that another has made are opened by a process of its own before the node opens them.

Each part of a file has a digest, which says that it is as it was sent, not that it is good: whoever
sends can have made it to hurt. RocksDB is C++ and trusts its files. What ends the trial's process,
or takes more memory or time than it may, is refused as a damaged copy is, and the node serves on.

The process has no descriptor of the node's but its own three, no variable of its environment but
where modules are, and limits (`copies.rocks_trial`). It has the node's user, so it is no place
for files that take the process over and read the disk.

Concurrency: one trial at a time in a process, so that many copies at once do not take its memory.
"""

import subprocess
import sys
import threading
from pathlib import Path

from rezone.wire.copying.copy import TRIED_BYTES_PER_SECOND_MIN
from rezone.wire.errors import CorruptionError

MODULE = "rezone.storage.copies.rocks_trial"
MEMORY_BYTES = 2 << 30
"""Of addresses, most of which are never used: libraries and what the allocator reserves."""

SECONDS_MIN = 60.0
"""A trial may take so long, and longer by its bytes: a busy node's takes a multiple of an idle
one's."""

_SAID_MAX = 300
_one = threading.Lock()


def seconds_max(size: int) -> float:
    """Return how long a trial of so many bytes may take."""
    return SECONDS_MIN + size / TRIED_BYTES_PER_SECOND_MIN


def try_files(directory: Path, size: int, command: tuple[str, ...] = ("-m", MODULE)) -> int:
    """Return how many entries an engine's files have; `size` is their bytes.

    Raises CorruptionError when they cannot be read, or their trial dies or takes too long.
    """
    most = seconds_max(size)
    asked = [sys.executable, *command, str(directory), str(MEMORY_BYTES), str(int(most))]
    with _one:
        try:
            ended = subprocess.run(
                asked,
                env={"PYTHONPATH": ":".join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                start_new_session=True,
                timeout=most,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CorruptionError(f"reading the files takes more than {most:.0f} s") from error
    if ended.returncode == 0 and ended.stdout.strip().isdigit():
        return int(ended.stdout)
    said = ended.stderr[-_SAID_MAX:].decode(errors="replace").strip()
    raise CorruptionError(f"the files cannot be read (trial ended with {ended.returncode}): {said}")
