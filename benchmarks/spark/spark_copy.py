"""A partition copied by Spark's job, to one data node and to two, beside a copy node to node.

    PYTHONPATH=operator:benchmarks python benchmarks/spark/spark_copy.py [--mb 500] [--rounds 5]
        [--cores 2] [--only rows,files] [--row-bytes 1024] [--starts 3]

Data nodes are processes of their own, Spark runs in local mode and has begun. One partition has
all rows, no clients write meanwhile, and `rebalance.foregroundTargetPercent` is 0. A round does in
turn: a copy that its receiver pulls by itself, the copy job with one receiver, the copy job with
two. MB/s: 10^6 bytes of keys and values, delivered to all receivers together, by the time from the
order to copy until all have everything durable; of the job, its time with the driver's asking for
admission. The first round is not counted. Goals, as ratios to the pulled copy of the same round:
one receiver 0.7, two 1.6.

Then a job is started as a process of its own, as a driver in its pod is: seconds from its start
to the first bytes at the receiver, most of which are the JVM's and Spark's start.
"""

import argparse
import contextlib
import importlib.util
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.one_partition import (
    KEY_BYTES,
    P,
    admit,
    discard,
    prepare,
    pulled,
    restart,
    set_share,
    source_zone,
)
from replica_cluster import Coordinator
from spark_read import session

from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.plan import CopyTarget, PartitionCopy

GOALS = {"Spark, one receiver": 0.7, "Spark, two receivers": 1.6}
_START_SECONDS_MAX = 120.0


def arguments(c: Coordinator, receivers: Sequence[int]) -> list[str]:
    """Admit a copy to these nodes; return the job's arguments."""
    admit(c, receivers)
    copy = PartitionCopy(
        partition=P,
        source=c.nodes[0].address,
        source_id=0,
        targets=tuple(CopyTarget(id=node, address=c.nodes[node].address) for node in receivers),
        revision=c.revision,
    )
    return ["--plan-json", copyplan.dumps([copy])]


def by_spark(c: Coordinator, receivers: Sequence[int]) -> float:
    """Copy by the job in the Spark of this process; return the seconds."""
    from rezone.transfer import copy_job  # noqa: PLC0415 - needs pyspark

    given = [*arguments(c, receivers), "--keep-context"]
    begun = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        code = copy_job.main(given)
    assert code == 0
    return time.monotonic() - begun


def measured(c: Coordinator, size: int, rounds: int) -> dict[str, list[float]]:
    """Return MB/s of each way in each round but the first."""
    ways: dict[str, tuple[Sequence[int], Callable[[], float]]] = {
        "node to node": ((1,), lambda: pulled(c)),
        "Spark, one receiver": ((1,), lambda: by_spark(c, (1,))),
        "Spark, two receivers": ((1, 2), lambda: by_spark(c, (1, 2))),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, (receivers, way) in ways.items():
            prepare(c, receivers)
            seconds = way()
            discard(c, receivers)
            if number:
                found[name].append(size * len(receivers) / seconds / 1e6)
    return found


def to_first_bytes(c: Coordinator) -> float:
    """Start a job as a process; return the seconds until its receiver has bytes."""
    prepare(c)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "rezone.transfer.copy_job", *arguments(c, (1,))]
    begun = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as job:
        try:
            c.until("the first bytes", lambda: came(c), _START_SECONDS_MAX)
            seconds = time.monotonic() - begun
            assert job.wait(_START_SECONDS_MAX) == 0
        finally:
            job.kill()  # where it does not come to its end
    discard(c)
    return seconds


def came(c: Coordinator) -> bool:
    """Whether the receiver has bytes of the copy."""
    copy = c.report(1, P).copy
    return copy is not None and bool(copy.bytes or copy.done)


def tell(form: str, found: dict[str, list[float]]) -> None:
    """Print medians of rates, and of ratios to the copy node to node of the same round."""
    direct = found["node to node"]
    for name, rates in found.items():
        ratios = [rate / other for rate, other in zip(rates, direct, strict=True)]
        line = f"  {form}, {name:22}{statistics.median(rates):7.0f} MB/s"
        line += f" ({min(rates):.0f} to {max(rates):.0f})"
        if goal := GOALS.get(name):
            line += f", {statistics.median(ratios):.2f} times node to node"
            line += f" ({min(ratios):.2f} to {max(ratios):.2f}; goal {goal})"
        print(f"{line}   load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--row-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default="rows,files")
    parser.add_argument("--starts", type=int, default=3, help="jobs as processes of their own")
    given = parser.parse_args()
    if importlib.util.find_spec("pyspark") is None:
        print("  no pyspark is installed here: make spark-env")
        return
    size, value_bytes = given.mb * 10**6, given.row_bytes - KEY_BYTES
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
        source_zone(Path(name), size // given.row_bytes, value_bytes) as c,
    ):
        set_share(c, 0)
        spark = session(given.cores, Path(name), "")
        try:
            for form in given.only.split(","):
                restart(c, form)
                tell(form, measured(c, size, given.rounds))
        finally:
            spark.stop()
        starts = [to_first_bytes(c) for _ in range(given.starts)]
    if starts:
        print(f"  a job's start to its first bytes: {statistics.median(starts):.1f} s")


if __name__ == "__main__":
    main()
