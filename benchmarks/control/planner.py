"""How long the planner takes and how near its lower bound it comes.

    PYTHONPATH=operator:benchmarks python benchmarks/control/planner.py [--partitions 16384]
        [--nodes 1000]

One thread; the best of --repeat runs. "copies" are replicas to be copied, "bound" the fewest that
any plan could need, "leaders" the leader changes.
"""

import argparse
import dataclasses
import time
from collections.abc import Iterator

from rezone.domain.planner.plan import NodeInfo, Plan, PlanRequest, drain, leaders_only, plan


def nodes(count: int, domains: int, weights: int) -> tuple[NodeInfo, ...]:
    """Return nodes dealt out to domains and weights in turn."""
    return tuple(
        NodeInfo(id=i, failure_domain=f"zone-{i % domains}", weight=1 + i % weights)
        for i in range(count)
    )


def cases(
    partitions: int, count: int, domains: int, weights: int
) -> Iterator[tuple[str, PlanRequest]]:
    """Return what happens to a zone, each case by its name."""
    all_nodes = nodes(count + 1, domains, weights)
    start = PlanRequest(partitions=partitions, replicas=3, nodes=all_nodes[:count])
    yield "first placement", start
    now = dataclasses.replace(start, current=plan(start).target)
    yield "nothing changed", now
    yield "one node added", dataclasses.replace(now, nodes=all_nodes)
    lost = tuple(dataclasses.replace(n, available=n.id != count // 2) for n in all_nodes[:count])
    yield "one node lost", dataclasses.replace(now, nodes=lost)
    yield "one node drained", drain(now, [count // 3])
    half = dataclasses.replace(start, nodes=all_nodes[: count // 2])
    grown = dataclasses.replace(start, current=plan(half).target)
    yield "nodes doubled", grown
    yield "nodes halved", dataclasses.replace(half, current=now.current)
    yield "replicas 3 to 5", dataclasses.replace(now, replicas=5)
    target = now.current or ()
    one_led = tuple(min(row) for row in target)
    yield "uneven leaders", leaders_only(dataclasses.replace(now, leaders=one_led))


def timed(request: PlanRequest, repeat: int) -> tuple[float, Plan]:
    """Return the best time in seconds and the plan."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        result = plan(request)
        best = min(best, time.perf_counter() - start)
    return best, result


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=16_384)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    for domains, weights in ((1, 1), (3, 1), (10, 1), (10, 3), (options.nodes, 1)):
        print(
            f"\n{options.partitions} partitions x 3, {options.nodes} nodes, "
            f"{domains} domains, weights 1 to {weights}"
        )
        for name, request in cases(options.partitions, options.nodes, domains, weights):
            seconds, result = timed(request, options.repeat)
            after = result.after
            print(
                f"  {name:<18}{seconds:7.3f} s  copies {result.copies:>6}  "
                f"bound {result.lower_bound:>6}  leaders {len(result.leader_moves):>6}  "
                f"off {after.replicas_off}/{after.leaders_off}  "
                f"domain conflicts {after.domain_conflicts}"
            )


if __name__ == "__main__":
    main()
