"""What honest clients pay for the boundary: data nodes with its checks, and without them, in turns.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/boundary_pairs.py [--pairs 16]
        [--seconds 4] [--clients 16]

Two zones of three data nodes stand side by side, the second one with `harness/unlimited_node.py` in
place of the data node, and without the library that limits what Flight receives. The same clients
write, then read, rows one by one at one of them, then at the other, the first one in turns. What is
compared is the processor time of one operation, of the nodes and of the client, pair by pair: other
work on the machine meets both. Printed are the median of the pairs' ratios, and between which two
pairs the median of all is with 95 %. Figures below 1.02 keep the promise.
"""

import argparse
import math
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.closed_loop import Figures, run
from harness.stores import RezoneStore
from harness.zone import running_zone
from replica_cluster import ProcessNode
from small_ops import calls_of, operation

from rezone.client import ClientSettings

KINDS = ("writes", "reads")
MOST = 1.02
PAIRS_MIN = 6
"""Of fewer no interval says anything with 95 %."""


class UnlimitedNode(ProcessNode):
    """A data node without the checks."""

    module = "harness.unlimited_node"

    def start(self) -> None:
        """Start it, with the benchmarks' modules."""
        root = Path(__file__).parents[2]
        self.environment["PYTHONPATH"] = f"{root / 'operator'}{os.pathsep}{root / 'benchmarks'}"
        super().start()


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return two of the ratios, between which their median would be of endless pairs, by 95 %."""
    count, outside, skipped = len(ratios), 0.0, 0
    while (outside := outside + math.comb(count, skipped) / 2**count) < 0.025:
        skipped += 1
    ordered = sorted(ratios)
    least = max(0, skipped - 1)
    return ordered[least], ordered[count - 1 - least]


def measured(store: RezoneStore, kind: str, clients: int, seconds: float) -> Figures:
    """Run one kind of operation by so many clients."""
    with store.clients(clients) as made:
        operations = [
            operation(calls_of(client)[kind], index * 1_013) for index, client in enumerate(made)
        ]
        return run(operations, seconds, store.cpu)


def show(kind: str, limited: Sequence[Figures], unlimited: Sequence[Figures]) -> None:
    """Print the ratios of one kind of operation."""
    parts: dict[str, Callable[[Figures], float]] = {
        "nodes": lambda each: each.servers_us,
        "client": lambda each: each.client_us,
        "all": lambda each: each.servers_us + each.client_us,
    }
    for what, of in parts.items():
        ratios = [of(a) / of(b) for a, b in zip(limited, unlimited, strict=True)]
        low, high = interval(ratios)
        kept = "kept" if high < MOST else "open" if low < MOST else "broken"
        print(
            f"{kind:<8}{what:<8}{statistics.median(map(of, unlimited)):10,.0f} us without"
            f"{statistics.median(ratios):9.4f}   [{low:.4f}, {high:.4f}]   2 %: {kept}",
            flush=True,
        )


def main() -> None:
    """Measure pairs, writes and reads each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=16, help=f"at least {PAIRS_MIN}")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    if given.pairs < PAIRS_MIN:
        parser.error(f"at least {PAIRS_MIN} pairs")
    settings = ClientSettings(shared_calls_max=1)
    with running_zone(3, 8, 3) as bounded, running_zone(3, 8, 3, node=UnlimitedNode) as open_one:
        stores = {"limited": RezoneStore(bounded, settings), "not": RezoneStore(open_one, settings)}
        found: dict[str, dict[str, list[Figures]]] = {k: {s: [] for s in stores} for k in KINDS}
        for pair in range(given.pairs):
            for name in sorted(stores, reverse=bool(pair % 2)):
                for kind in KINDS:
                    figures = measured(stores[name], kind, given.clients, given.seconds)
                    found[kind][name].append(figures)
        for kind in KINDS:
            show(kind, found[kind]["limited"], found[kind]["not"])
    print(f"{given.pairs} pairs of {given.seconds:g} s   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
