"""What a transaction costs beside a read and a write without one, and what contention does to it.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/transactions.py [--seconds 5]
        [--clients 4] [--rounds 3]

A zone of three nodes, all in sync. Each client reads a row, and writes it and another one of the
same partition: first plainly (a read, a write), then in a transaction (begin, a read, a write, a
commit). With rows of their own, and with the same two rows for all, where a transaction that meets
another one begins again. The three run in turn, so that other load on the machine hits all of them.
"""

import argparse
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from harness.zone import Zone, batch_of, ids_by_partition, percentile, running_zone

from rezone.client import TableClient
from rezone.wire.errors import TransactionConflictError

_NODES = 3

Work = Callable[[TableClient, list[int]], bool]


def plain(client: TableClient, ids: list[int]) -> bool:
    """Read a row and write two, with nothing that holds them together."""
    client.read([{"id": ids[0]}])
    client.write(batch_of(ids, 1))
    return True


def transaction(client: TableClient, ids: list[int]) -> bool:
    """Do the same in a transaction; return whether it committed."""
    try:
        with client.transaction({"id": ids[0]}) as tx:
            tx.read([{"id": ids[0]}])
            tx.write(batch_of(ids, 1))
    except TransactionConflictError:
        return False
    return True


def pairs_of(partitions: int, count: int) -> list[list[int]]:
    """Return pairs of keys, each pair of one partition, partition after partition."""
    each = -(-count // partitions)
    ids = ids_by_partition(partitions, 2 * each)
    pairs = [ids[p][2 * n : 2 * n + 2] for n in range(each) for p in range(partitions)]
    return pairs[:count]


def run(zone: Zone, work: Work, rows: list[list[int]], seconds: float) -> tuple[list[float], int]:
    """Have each client repeat its work for a while; return seconds per success, and failures."""
    took: list[float] = []
    failed = [0]
    until = time.monotonic() + seconds

    def repeat(ids: list[int], rng: random.Random) -> None:
        with zone.client() as client:
            while (begun := time.monotonic()) < until:
                if work(client, ids):
                    took.append(time.monotonic() - begun)
                else:
                    failed[0] += 1
                    time.sleep(rng.uniform(0, 0.002))  # who was refused lets the other one end

    threads = [
        threading.Thread(target=repeat, args=(ids, random.Random(n))) for n, ids in enumerate(rows)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took, failed[0]


def main() -> None:
    """Measure the three, some rounds each, and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    given = parser.parse_args()
    count = given.clients
    took: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, int] = defaultdict(int)
    with running_zone(_NODES, given.partitions, _NODES) as zone:
        own = pairs_of(given.partitions, count)
        kinds: dict[str, tuple[Work, list[list[int]]]] = {
            "plain": (plain, own),
            "transaction": (transaction, own),
            "the same rows": (transaction, [own[0]] * count),
        }
        for _ in range(given.rounds):
            for name, (work, rows) in kinds.items():
                times, refused = run(zone, work, rows, given.seconds)
                took[name] += times
                failed[name] += refused
    load = Path("/proc/loadavg").read_text().split()[0]
    print(f"{count} clients, {given.rounds} x {given.seconds:g} s each; load {load}")
    print("                 per second   median ms    99 % ms   refused")
    for name, times in took.items():
        rate = len(times) / given.seconds / given.rounds
        print(
            f"{name:16} {rate:10.0f} {1000 * percentile(times, 0.5):11.1f} "
            f"{1000 * percentile(times, 0.99):10.1f} {failed[name]:9}"
        )


if __name__ == "__main__":
    main()
