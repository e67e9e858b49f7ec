"""What writers and readers of a node keep while one of its partitions is copied away.

    PYTHONPATH=operator:benchmarks python benchmarks/moves/foreground.py [--mb 200] [--rounds 3]
        [--clients 1] [--shares 0,80] [--forms rows,files] [--per-second 0]

One partition of 1 KiB rows, its leader alone has it; each client writes ten rows and reads ten, in
turn, by random keys, as fast as it can (or `--per-second` turns). Each round measures them alone
and then while the partition is copied to another node, once for each value of
`rebalance.foregroundTargetPercent` in `--shares`, which is changed while everything runs. Turns of
all rounds together: their rate and 99th percentiles alone -> during the copy, what share is kept,
and how fast the copy was. The copy's rate without any client is measured beside it.

Clients, both nodes and this process share the machine's cores and its disk, so a part of what a
copy costs is the price of moving bytes at all. "plain" says how much: after each copy as many
bytes are sent by sendfile, written and synced by two other processes, at the rate the copy had.
The last figure is what the clients keep during a copy by what they keep during its plain one.
"""

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.one_partition import discard, prepare, pulled, restart, set_share, source_zone
from harness.peers import sendfile_copy
from harness.traffic import Turn, Window, traffic, wait_for
from replica_cluster import Coordinator

VALUE_BYTES = 1016
KEY_BYTES = 8


class Windows(NamedTuple):
    """What was measured alone, during copies, and during plain copies at their rate."""

    alone: Window
    during: Window
    plain: Window


def nothing_yet() -> Windows:
    """Return windows without turns."""
    return Windows(*(Window([], []) for _ in Windows._fields))


def measure(
    c: Coordinator, turns: list[Turn], seconds: float, into: Windows, plain: Callable[[float], None]
) -> None:
    """Add one window of each kind; `plain` copies plainly, in so many seconds."""
    prepare(c)
    begun = time.monotonic()
    threading.Event().wait(seconds)
    started = time.monotonic()
    copying = pulled(c)
    ended = time.monotonic()
    into.alone.add(turns, begun, started)
    into.during.add(turns, started, ended)
    discard(c)
    begun = time.monotonic()
    plain(copying)
    into.plain.add(turns, begun, time.monotonic())


def show(name: str, found: Windows, size: int) -> None:
    """Print a line for the copies and one for the plain ones."""
    for what, window in ((name, found.during), ("  plain", found.plain)):
        cells = [
            f"p99 {part} {found.alone.slowest(part):5.1f} -> {window.slowest(part):5.1f} ms"
            for part in ("write", "read")
        ]
        before, meanwhile = found.alone.per_second, window.per_second
        print(
            f"  {what:14} {before:6.0f} -> {meanwhile:6.0f} turns/s, {meanwhile / before:4.0%}; "
            f"{'; '.join(cells)}; copy {size / statistics.median(window.seconds) / 1e6:5.0f} MB/s",
            flush=True,
        )
    print(f"  {'':14} {found.during.per_second / found.plain.per_second:.0%} of plain", flush=True)


def main() -> None:
    """Measure each form of copy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", default="0,80")
    parser.add_argument("--forms", default="rows,files")
    parser.add_argument("--per-second", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window without a copy")
    given = parser.parse_args()
    size = given.mb * 10**6
    rows = size // (VALUE_BYTES + KEY_BYTES)
    directory = Path(tempfile.mkdtemp(prefix="rezone-foreground-"))

    def plain(seconds: float) -> None:
        sendfile_copy(directory, size, size / seconds)

    try:
        with source_zone(directory, rows, VALUE_BYTES) as c:
            sendfile_copy(directory, size)  # makes the file, and touches the memory
            for form in given.forms.split(","):
                restart(c, form)
                alone = []
                for _ in range(given.rounds):
                    prepare(c)
                    alone.append(pulled(c))
                    discard(c)
                print(f"{form}: {size / statistics.median(alone) / 1e6:.0f} MB/s without clients")
                shares = [int(share) for share in given.shares.split(",")]
                found = {share: nothing_yet() for share in shares}
                with traffic([c.nodes[0].address], rows, VALUE_BYTES, given.per_second) as turns:
                    wait_for(turns, 100)
                    for _ in range(given.rounds):
                        for share in shares:
                            set_share(c, share)
                            measure(c, turns, given.seconds, found[share], plain)
                for share in shares:
                    show(f"{share} % kept" if share else "not slowed", found[share], size)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
