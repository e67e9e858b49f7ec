"""How late a data node's own thread comes to run: quiet, during bulk copies, and under upserts.

    PYTHONPATH=operator:benchmarks python benchmarks/moves/loop_lag.py [--mb 200]
        [--forms rows,files] [--indexed]

The node's thread wants to run every 20 ms and notes how late it is
(`rezone_data_node_loop_lag_seconds`): what it waits for, a call that holds Python's lock or a core
that is not free, every thread of the node waits for. Node 1 receives one partition from node 0 a
few times, in each form, with Spark's way of copying (a third process passes it on); then node 0
takes batches of 1,000 rows of 100 bytes as fast as one client sends them. Shares of the moments
that were later than so many milliseconds, at both nodes. On a busy machine compare with "quiet".
With `--indexed` the table has an index, whose entries a receiver of rows makes as they come.
"""

import argparse
import json
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

from harness.one_partition import discard, prepare, relayed, restart, source_zone
from harness.traffic import batch_of
from harness.zone import settle
from replica_cluster import Coordinator, ProcessNode

from rezone.client import TableClient
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.messages import ZoneConfig

VALUE_BYTES = 1016
SMALL_BYTES = 92
SHOWN_MS = (1, 2, 5, 10, 20, 50)
_BUCKET = re.compile(r'^rezone_data_node_loop_lag_seconds_bucket{le="(\S+)"} (\S+)', re.MULTILINE)


class Lags(NamedTuple):
    """Moments counted so far: all, and those no later than each bound in seconds."""

    total: float
    within: dict[float, float]


def lags(c: Coordinator, node: int) -> Lags:
    """Ask a node for its histogram."""
    process = c.nodes[node]
    assert isinstance(process, ProcessNode)
    lines = map(json.loads, (process.directory / "log.txt").read_text().splitlines())
    # The last one: the node may have been started again.
    port = [line["health_port"] for line in lines if line["event"] == "serving"][-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        found = {float(le): float(n) for le, n in _BUCKET.findall(answer.read().decode())}
    return Lags(found[float("inf")], found)


def show(name: str, before: Lags, after: Lags) -> None:
    """Print what came between."""
    total = after.total - before.total
    cells = []
    for milliseconds in SHOWN_MS:
        bound = milliseconds / 1000
        within = after.within[bound] - before.within[bound]
        cells.append(f"{1 - within / total:7.1%}")
    print(f"{name:36}{total:8.0f}{''.join(cells)}", flush=True)


def watch(c: Coordinator, name: str, what: object) -> None:
    """Show what the nodes note while something happens."""
    before = {node: lags(c, node) for node in (0, 1)}
    assert callable(what)
    what()
    for node, role in ((0, "sender, leader"), (1, "receiver")):
        show(f"{name}: {role}", before[node], lags(c, node))


def copies(c: Coordinator, rounds: int) -> None:
    """Copy a few times."""
    for _ in range(rounds):
        prepare(c)
        relayed(c)
        discard(c)


def upserts(c: Coordinator, batches: int) -> None:
    """Write batches of small rows to node 0."""
    with TableClient([c.nodes[0].address]) as client:
        pending = []
        for number in range(batches):
            rows = list(range(number * 1000, number * 1000 + 1000))
            pending.append(client.submit_write(batch_of(rows, SMALL_BYTES, number)))
            if len(pending) > 4:
                pending.pop(0).result()
        for outcome in pending:
            outcome.result()


def main() -> None:
    """Measure each form of copy, then upserts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--forms", default="rows,files")
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=4.0, help="of the quiet time")
    parser.add_argument("--indexed", action="store_true")
    given = parser.parse_args()
    table = TableSchema(indexes=(Index("by_key", ("key",)),) if given.indexed else ())
    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=table)
    rows = given.mb * 10**6 // 1024
    directory = Path(tempfile.mkdtemp(prefix="rezone-lag-"))
    print(f"{'later than, ms':36}{'moments':>8}" + "".join(f"{ms:7}" for ms in SHOWN_MS))
    try:
        with source_zone(directory, rows, VALUE_BYTES, config) as c:
            for form in given.forms.split(","):
                restart(c, form)
                watch(c, "quiet", lambda: settle(given.seconds))
                watch(c, form, lambda: copies(c, given.rounds))
            watch(c, "upserts", lambda: upserts(c, given.batches))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
