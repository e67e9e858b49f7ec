"""How long writes stand still when a machine falls silent: with a data node, the operator, or both.

    PYTHONPATH=operator:benchmarks python benchmarks/failures/lost_machine.py [--rounds 3]
        [--partitions 6]

A real control plane, two operators and three data nodes with their defaults, each a process of its
own. A machine that falls silent refuses nothing and breaks no connection: its processes are frozen
(SIGSTOP), the node agent among them, which would start them again. In turn fall silent

- `machine`: the leading operator and a data node at the same moment;
- `node`: the data node alone;
- `operator`: the leading operator alone, which no writer should feel.

One writer per partition writes all the time. Told are, from the freeze on: when the other operator
had the Lease; when the first and the last new record of a route was written; and the longest time
between two acknowledged writes of the partitions that the data node led, and of the others, whose
follower it was. Then everything is thawed or replaced, and the zone is Ready before the next turn.
On an otherwise idle machine, or the figures are noise.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from harness.operated import NAMESPACE, local_cluster, operator
from harness.traffic import batch_of, key_of

from rezone.client import TableClient
from rezone.local.agent.records import load_record
from rezone.local.api import Json, KubeApi
from rezone.local.cluster import AGENT, LocalCluster
from rezone.wire.codec.keyspace import hash_key, partition_of
from rezone.wire.messages import LeaderAndIsr

_ZONES = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/distributionzones"
_ROUTES = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_ROUTES_OF_ZONE = "rezone.dev/zone=silent,app.kubernetes.io/component=routes"
_LEASE = "rezone-operator"
_NODES, _VALUE_BYTES = 3, 100
_CASES = ("machine", "node", "operator")
_DEADLINE_SECONDS = 120.0
_CALM_SECONDS = 6.0
"""How long the partitions are written to before a freeze, and after the last write gap."""


class Turn(NamedTuple):
    """What one freeze did, in seconds after it; NaN for what did not happen."""

    lease: float
    first_record: float
    last_record: float
    gap_led: float
    gap_others: float


class Writer:
    """Writes to one partition all the time."""

    def __init__(self, client: TableClient, partition: int, partitions: int, pause: float) -> None:
        self.partition = partition
        self.acks: list[float] = []
        self._acked = threading.Condition()
        self._client = client
        self._pause = pause
        numbers = (n for n in itertools.count() if _partition(n, partitions) == partition)
        self._numbers = list(itertools.islice(numbers, 4))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for seed in itertools.count():
            if self._stop.wait(self._pause):
                return
            self._client.write(batch_of(self._numbers, _VALUE_BYTES, seed))
            with self._acked:
                self.acks.append(time.monotonic())
                self._acked.notify_all()

    def wait_until_after(self, begun: float) -> None:
        """Wait for an acknowledged write after a moment."""
        with self._acked:
            written = self._acked.wait_for(lambda: self.acks[-1:] > [begun], _DEADLINE_SECONDS)
        assert written, f"partition {self.partition} is not written to"

    def gap(self, begun: float) -> float:
        """Return the longest time between two answers that ended after `begun`."""
        acks = [at for at in self.acks if at > begun - 1.0]
        later = [(b - a) for a, b in itertools.pairwise(acks) if b > begun]
        return max(later, default=float("nan"))

    def stop(self) -> None:
        """End after the write under way."""
        self._stop.set()
        self._thread.join()


def _partition(number: int, partitions: int) -> int:
    return partition_of(hash_key(key_of(number)), partitions)


class Operators:
    """Two operators, each with the name of a pod, to be frozen and replaced."""

    def __init__(self, kubeconfig: Path, logs: Path, given: argparse.Namespace) -> None:
        self._kubeconfig = kubeconfig
        self._logs = logs
        self._settings = dict(each.split("=", 1) for each in given.set)
        self._lives: dict[str, contextlib.ExitStack] = {}
        self.pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        for number in range(2):
            self.start(f"operator-{number}", number)
        return self

    def __exit__(self, *_: object) -> None:
        for life in self._lives.values():
            life.close()

    def start(self, name: str, number: int) -> None:
        """Start one, or another one in its place."""
        life = self._lives[name] = contextlib.ExitStack()
        own = {"POD_NAME": name, "REZONE_HEALTH_PORT": str(18080 + number)} | self._settings
        self.pids[name] = life.enter_context(
            operator(self._kubeconfig, self._logs / f"{name}.log", **own)
        )

    def replace(self, name: str) -> None:
        """Kill one, frozen or not, and start it again."""
        os.kill(self.pids[name], signal.SIGKILL)
        self._lives.pop(name).close()
        self.start(name, int(name.rpartition("-")[2]))


class Watch:
    """What the API server tells: who has the Lease, and when routes changed."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self.zone: Json = {}
        self.holder = ""
        self.leases: list[tuple[float, str]] = []
        self.changes: list[float] = []
        self.records: dict[int, LeaderAndIsr] = {}
        self._news = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for path, take, selector in (
            (_LEASES, self._take_lease, {"fieldSelector": f"metadata.name={_LEASE}"}),
            (_ROUTES, self._take_routes, {"labelSelector": _ROUTES_OF_ZONE}),
            (_ZONES, self._take_zone, {"fieldSelector": "metadata.name=silent"}),
        ):
            self._tasks.append(asyncio.create_task(self._follow(path, take, selector)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, path: str, take: Callable[[Json], None], selector: Any) -> None:
        async for event, item in self._api.follow(path, **selector):
            async with self._news:
                for each in item["items"] if event == "SYNC" else [item]:
                    take(each)
                self._news.notify_all()

    def _take_lease(self, lease: Json) -> None:
        holder = lease["spec"].get("holderIdentity", "").rpartition("_")[0]
        if holder != self.holder:
            self.leases.append((time.monotonic(), holder))
        self.holder = holder

    def _take_routes(self, shard: Json) -> None:
        fresh = {
            int(key): msgspec.json.decode(text, type=LeaderAndIsr)
            for key, text in (shard.get("data") or {}).items()
        }
        if any(self.records.get(p) != record for p, record in fresh.items()):
            self.changes.append(time.monotonic())
        self.records |= fresh

    def _take_zone(self, zone: Json) -> None:
        self.zone = zone

    async def until(self, what: str, check: Callable[[], bool]) -> None:
        """Wait until `check` is true; looked at with every news."""
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS), self._news:
                await self._news.wait_for(check)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.zone.get('status')}, {self.records}") from None

    def calm(self) -> bool:
        """Whether the zone is Ready and all replicas are in sync."""
        conditions = (self.zone.get("status") or {}).get("conditions") or ()
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        in_sync = all(set(r.isr) == set(r.replicas) for r in self.records.values())
        return ready and in_sync and bool(self.holder and self.records)

    def addresses(self) -> dict[int, str]:
        """Return the data nodes' addresses."""
        return {n["id"]: n["address"] for n in self.zone["status"]["dataNodes"]}


def _pid_of_node(state: Path, zone: Json, node: int) -> int:
    """Return the process group of a data node."""
    pods = {n["id"]: n["podName"] for n in zone["status"]["dataNodes"]}
    for directory in (state / "pods").glob(f"{NAMESPACE}_{pods[node]}*"):
        record = load_record(directory)
        process = record.containers["data-node"].process if record is not None else None
        if process is not None and process.alive():
            return process.pid
    raise AssertionError(f"data node {node} has no process")


@contextlib.contextmanager
def _silent(agent: int, groups: Sequence[int], operators: Sequence[int]) -> Iterator[float]:
    """Freeze the agent, process groups, and operators, which are not thawed; yields when."""
    for pid in (agent, *operators):
        os.kill(pid, signal.SIGSTOP)
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    try:
        yield time.monotonic()
    finally:
        for group in groups:
            os.killpg(group, signal.SIGCONT)
        os.kill(agent, signal.SIGCONT)


class Bench:
    """One zone, its writers, and the processes that can be frozen."""

    def __init__(self, given: argparse.Namespace, cluster: LocalCluster, state: Path) -> None:
        self._given = given
        self._cluster = cluster
        self._state = state

    async def turn(self, case: str, watch: Watch, operators: Operators) -> Turn:
        """Freeze what a case names, until all partitions are written to again."""
        await watch.until("calm", watch.calm)
        leading = watch.holder
        victim = watch.records[0].leader
        led = {p for p, r in watch.records.items() if r.leader == victim}
        agent = next(p.pid for p in self._cluster.status() if p.name == AGENT and p.pid)
        frozen = [operators.pids[leading]] if case != "node" else []
        groups = [_pid_of_node(self._state, watch.zone, victim)] if case != "operator" else []
        with TableClient(list(watch.addresses().values())) as client:
            count = len(watch.records)
            pause = self._given.pause_ms / 1000
            writers = [Writer(client, p, count, pause) for p in range(count)]
            await asyncio.sleep(_CALM_SECONDS)
            watch.changes.clear()
            watch.leases.clear()
            with _silent(agent, groups, frozen) as begun:
                await self._written_again(watch, begun, writers, case, victim)
                seen = [at - begun for at in watch.changes]
                taken = [at - begun for at, holder in watch.leases if holder not in ("", leading)]
                for writer in writers:
                    writer.stop()
        if frozen:
            operators.replace(leading)
        gaps = {w.partition: w.gap(begun) for w in writers}
        return Turn(
            min(taken, default=float("nan")),
            min(seen, default=float("nan")),
            max(seen, default=float("nan")),
            max(gap for p, gap in gaps.items() if p in led),
            max(gap for p, gap in gaps.items() if p not in led),
        )

    async def _written_again(
        self, watch: Watch, begun: float, writers: Sequence[Writer], case: str, victim: int
    ) -> None:
        if case != "node":
            await watch.until("another operator", lambda: bool(watch.leases))
        if case != "operator":
            await watch.until(
                "a set without the node",
                lambda: all(victim not in (r.leader, *r.isr) for r in watch.records.values()),
            )
        writing = (asyncio.to_thread(writer.wait_until_after, begun + 0.5) for writer in writers)
        await asyncio.gather(*writing)
        await asyncio.sleep(_CALM_SECONDS)


def _zone(given: argparse.Namespace) -> Json:
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": "silent"},
        "spec": {
            "partitions": given.partitions,
            "replicas": _NODES,
            "minInSyncReplicas": 2,
            "dataNodes": {"count": _NODES},
        },
    }


async def _run(given: argparse.Namespace, cluster: LocalCluster, logs: Path) -> None:
    found: dict[str, list[Turn]] = {case: [] for case in given.cases}
    with Operators(cluster.kubeconfig, logs, given) as operators:
        async with KubeApi(cluster.kubeconfig) as api, Watch(api) as watch:
            await api.create(_ZONES, _zone(given))
            bench = Bench(given, cluster, logs / "state")
            for _ in range(given.rounds):
                for case, turns in found.items():
                    turns.append(await bench.turn(case, watch, operators))
                    print(f"{case:10}{_row(turns[-1])}", flush=True)
    print(f"medians of {given.rounds}, load {os.getloadavg()[0]:.1f}; seconds after the freeze")
    print("           Lease  first record  last record  gap, led by it  gap, others")
    for case, turns in found.items():
        print(f"{case:10}{_row(Turn(*map(statistics.median, zip(*turns, strict=True))))}")


def _row(turn: Turn) -> str:
    lease, first, last, led, others = turn
    return f"{lease:6.1f}{first:14.1f}{last:13.1f}{led:16.2f}{others:13.2f}"


def main() -> None:
    """Make the zone, freeze what falls silent in each case, print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--pause-ms", type=float, default=20.0, help="a writer's pause")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="environment of the operators"
    )
    given = parser.parse_args()
    with local_cluster(_NODES) as (cluster, logs):
        asyncio.run(_run(given, cluster, logs))


if __name__ == "__main__":
    main()
