"""The main job, end to end: what `make demo` shows and the first end-to-end test asserts.

A zone of four data nodes is loaded through Spark. Under writes and reads a fifth node joins, the
operator is killed in the middle of the rebalance, a node is cordoned and drained, and one leader
is moved by hand. Then everything is proved.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from rezone.cli.demo.cluster import NAMESPACE, DemoCluster, DemoError, Json
from rezone.cli.demo.gaps import LeaderMove, gap_of
from rezone.cli.demo.history import Happened, History
from rezone.cli.demo.manifests import load_application, migration, zone
from rezone.cli.demo.operations import Operations
from rezone.cli.demo.proof import prove
from rezone.cli.demo.report import DemoReport, TaskResult
from rezone.cli.demo.table import DemoTable
from rezone.cli.demo.traffic import PAUSE_SECONDS, Traffic
from rezone.cli.demo.watcher import LeaderWatcher, MoveWatcher
from rezone.domain.routing.partition_map import marks_of_routes, picture
from rezone.local.agent.nodes import add_node
from rezone.wire.messages import LeaderAndIsr

ZONE = "demo"
POOL_LABEL = "rezone.dev/pool"
FIRST_NODES = tuple(f"worker-{n}" for n in range(1, 5))
JOINING_NODE = "worker-5"
DRAINED_NODE = "worker-2"

Say = Callable[[str], None]


class Scenario:
    """One run of the main job on one cluster."""

    def __init__(
        self,
        cluster: DemoCluster,
        table: DemoTable,
        *,
        partitions: int,
        say: Say,
        show_task: Callable[[Json], None],
        end_task: Callable[[], None],
        pause_seconds: float = PAUSE_SECONDS,
        operations: Operations | None = None,
    ) -> None:
        self._cluster = cluster
        self._pause_seconds = pause_seconds
        self._operations = operations
        self._table = table
        self._partitions = partitions
        self._say_only = say
        self._happened: list[Happened] = []
        self._show_task = show_task
        self._end_task = end_task

    async def run(self) -> DemoReport:
        """Run all steps; DemoError when one does not come to its end."""
        await self._create_zone()
        load_seconds = await self._load()
        before = await self._cluster.routes(ZONE)
        bootstrap = list((await self._addresses()).values())
        traffic = await asyncio.to_thread(
            Traffic,
            bootstrap,
            self._table,
            self._partitions,
            pause_seconds=self._pause_seconds,
            operations=self._operations,
        )
        watcher = MoveWatcher(self._cluster, traffic)
        leaders = LeaderWatcher(self._cluster, ZONE)
        begun = time.monotonic()
        self._happened.clear()
        traffic.start()
        watching = [asyncio.create_task(each.run()) for each in (watcher, leaders)]
        try:
            tasks = [
                await self._join_node(),
                await self._drain_node(),
            ]
            await self._move_leader(watcher, traffic)
        finally:
            for each in watching:
                each.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            ended = time.monotonic()
            self._say_only("stopping the load, reading everything back")
            await asyncio.to_thread(traffic.stop)
        history = History(
            begun=begun,
            ended=ended,
            acks=dict(traffic.acks),
            leaders=leaders.leaders,
            happened=tuple(self._happened),
        )
        return await self._report(
            traffic, watcher.moves, tasks, before, load_seconds, history=history
        )

    def _say(self, what: str) -> None:
        """Say what is done next, and remember when it was."""
        self._happened.append(Happened(time.monotonic(), what))
        self._say_only(what)

    # --- steps -------------------------------------------------------------------------------

    async def _create_zone(self) -> None:
        await self._remove_old_zone()
        for name in FIRST_NODES:
            await self._label(name, POOL_LABEL, ZONE)
        self._say(f"applying DistributionZone {ZONE}: {self._partitions} partitions, 3 replicas")
        await self._cluster.apply(zone(ZONE, self._table.schema, self._partitions, POOL_LABEL))

        async def ready() -> bool:
            found = await self._cluster.own("distributionzones", ZONE)
            return _condition(found, "Ready") == "True"

        await self._cluster.until("the zone to be ready", ready, timeout_seconds=120)

    async def _remove_old_zone(self) -> None:
        await self._cluster.kubectl(
            *("--namespace", NAMESPACE, "delete", "distributionzone,regionmigration"),
            *("--all", "--ignore-not-found", "--wait", "--timeout=60s"),
        )
        await self._cluster.kubectl(
            *("--namespace", NAMESPACE, "delete", "sparkapplication"),
            *("--all", "--ignore-not-found", "--wait", "--timeout=60s"),
        )

        async def gone() -> bool:
            return not await self._cluster.pods(f"rezone.dev/zone={ZONE}")

        await self._cluster.until("the old zone's pods to end", gone, timeout_seconds=90)
        await self._label(JOINING_NODE, POOL_LABEL, None)
        await self._cordon(DRAINED_NODE, cordoned=False)

    async def _load(self) -> float:
        self._say(f"loading {self._table.rows:,} rows through the Spark data source")
        bootstrap = ",".join((await self._addresses()).values())
        started = time.monotonic()
        name = f"{ZONE}-load"
        await self._cluster.apply(load_application(name, bootstrap, ZONE, self._table.load))
        path = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"

        async def ended() -> str:
            found = await self._cluster.api.get(f"{path}/{name}")
            state = (found.get("status") or {}).get("applicationState") or {}
            if state.get("state") == "FAILED":
                raise DemoError(
                    f"loading failed: {state.get('errorMessage')}; "
                    f"see kubectl -n {NAMESPACE} logs {name}-driver"
                )
            return "x" if state.get("state") == "COMPLETED" else ""

        await self._cluster.until("the rows to be loaded", ended, timeout_seconds=1800)
        return await self._driver_seconds(f"{name}-driver", time.monotonic() - started)

    async def _join_node(self) -> TaskResult:
        self._say(f"node {JOINING_NODE} joins; the operator is killed while partitions move")
        await add_node(self._cluster.api, JOINING_NODE)
        known = await self._task_names()
        await self._label(JOINING_NODE, POOL_LABEL, ZONE)
        return await self._follow_new_task(known, kill_operator=True)

    async def _drain_node(self) -> TaskResult:
        self._say(f"node {DRAINED_NODE} is cordoned: everything moves off it")
        known = await self._task_names()
        await self._cordon(DRAINED_NODE, cordoned=True)
        result = await self._follow_new_task(known, kill_operator=False)

        async def empty() -> bool:
            found = await self._cluster.own("distributionzones", ZONE)
            return all(n.get("nodeName") != DRAINED_NODE for n in found["status"]["dataNodes"])

        await self._cluster.until("the drained data node to go", empty, timeout_seconds=90)
        return result

    async def _move_leader(self, watcher: MoveWatcher, traffic: Traffic) -> None:
        routes = await self._cluster.routes(ZONE)
        partition = 0
        record = routes[partition]
        target = next(node for node in record.isr if node != record.leader)
        self._say(f"RegionMigration: partition {partition} to data node {target}")
        name = f"{ZONE}-by-hand"
        await self._cluster.apply(migration(name, ZONE, partition, target))

        async def ended() -> str:
            found = await self._cluster.own("regionmigrations", name)
            state = (found.get("status") or {}).get("state", "")
            if state in ("Failed", "RolledBack"):
                raise DemoError(f"RegionMigration {name} ended {state}: {found['status']}")
            return "x" if state == "Succeeded" else ""

        await self._cluster.until("the leader to move", ended, timeout_seconds=60)

        async def noted() -> bool:
            acks = traffic.acks[partition]
            written = acks and acks[-1].leader_epoch > record.leader_epoch
            return bool(written) and any(move.name == name for move in watcher.moves)

        # Its gap has two sides, and the watch may be behind what was just read.
        await self._cluster.until("a write that the new leader answers", noted, timeout_seconds=60)

    # --- following tasks ---------------------------------------------------------------------

    async def _task_names(self) -> frozenset[str]:
        found = await self._cluster.own("rebalancetasks")
        return frozenset(item["metadata"]["name"] for item in found["items"])

    async def _follow_new_task(self, known: frozenset[str], *, kill_operator: bool) -> TaskResult:
        async def appeared() -> str:
            return next(iter(await self._task_names() - known), "")

        name = await self._cluster.until("a RebalanceTask", appeared, timeout_seconds=90)
        started = time.monotonic()
        killed = not kill_operator

        async def ended() -> Json | None:
            nonlocal killed
            task = await self._cluster.own("rebalancetasks", name)
            self._show_task(task)
            state = (task.get("status") or {}).get("state", "")
            if not killed and state in ("Transferring", "Switching"):
                killed = True
                pid = await self._cluster.kill_operator()
                self._end_task()
                self._say(f"killed the operator (SIGKILL to process group {pid}) in state {state}")
            if state in ("Failed", "Cancelled"):
                raise DemoError(f"RebalanceTask {name} ended {state}: {task['status']}")
            return task if state == "Succeeded" else None

        task = await self._cluster.until("the rebalance to end", ended, timeout_seconds=1800)
        self._end_task()
        if not killed:
            raise DemoError(f"RebalanceTask {name} ended before the operator could be killed")
        return await self._task_result(name, task, time.monotonic() - started)

    async def _task_result(self, name: str, task: Json, seconds: float) -> TaskResult:
        plan = task["status"]["plan"]
        application = task["status"].get("sparkApplication", "")
        copied_bytes, copy_seconds = await self._copied(application)
        return TaskResult(
            name=name,
            moves=plan["moves"],
            moves_lower_bound=plan["movesLowerBound"],
            leader_moves=plan.get("leaderMoves", 0),
            copied_bytes=copied_bytes,
            copy_seconds=copy_seconds,
            seconds=seconds,
        )

    async def _copied(self, application: str) -> tuple[int, float]:
        if not application:
            raise DemoError("the rebalance ran without a SparkApplication")

        # The data nodes' reports end a rebalance, so its driver may still be counting receipts.
        async def summarized() -> Json | None:
            return await self._driver_summary(f"{application}-driver")

        summary = await self._cluster.until(f"the summary of {application}", summarized)
        return int(summary["bytes"]), float(summary["copy_seconds"])

    # --- the end -----------------------------------------------------------------------------

    async def _report(
        self,
        traffic: Traffic,
        moves: list[LeaderMove],
        tasks: list[TaskResult],
        before: tuple[LeaderAndIsr, ...],
        load_seconds: float,
        *,
        history: History,
    ) -> DemoReport:
        routes = await self._cluster.routes(ZONE)
        addresses = await self._addresses()
        book = traffic.ledger.book()
        proof = await asyncio.to_thread(
            prove,
            list(addresses.values()),
            self._table,
            book,
            dict(enumerate(routes)),
            addresses,
        )
        gaps = [gap_of(move, traffic.acks[move.partition]) for move in moves]
        return DemoReport(
            rows_loaded=self._table.rows,
            load_seconds=load_seconds,
            tasks=tuple(tasks),
            gaps=tuple(gap for gap in gaps if gap is not None),
            writes=sum(len(times) for times in traffic.acks.values()),
            reads=traffic.read_count,
            traffic_problems=(
                *traffic.write_failures,
                *traffic.read_failures,
                *traffic.stale_reads,
            ),
            proof=proof,
            map_before=picture(marks_of_routes(before)),
            map_after=picture(marks_of_routes(routes)),
            history=history,
        )

    async def _addresses(self) -> dict[int, str]:
        found = await self._cluster.own("distributionzones", ZONE)
        nodes = found["status"]["dataNodes"]
        return {node["id"]: node["address"] for node in nodes if node.get("address")}

    async def _driver_summary(self, pod: str) -> Json | None:
        """Return the JSON line that the jobs print at their end, None before it."""
        text = await self._cluster.kubectl("--namespace", NAMESPACE, "logs", pod, "--tail=400")
        for line in reversed(text.splitlines()):
            if line.startswith("{") and '"seconds"' in line:
                summary: Json = json.loads(line)
                return summary
        return None

    async def _driver_seconds(self, pod: str, otherwise: float) -> float:
        summary = await self._driver_summary(pod)
        return float(summary["seconds"]) if summary else otherwise

    async def _label(self, node: str, key: str, value: str | None) -> None:
        await self._patch_node(node, {"metadata": {"labels": {key: value}}})

    async def _cordon(self, node: str, *, cordoned: bool) -> None:
        await self._patch_node(node, {"spec": {"unschedulable": cordoned or None}})

    async def _patch_node(self, node: str, patch: dict[str, Any]) -> None:
        names = {
            n["metadata"]["name"] for n in (await self._cluster.api.get("/api/v1/nodes"))["items"]
        }
        if node in names:
            await self._cluster.api.patch(f"/api/v1/nodes/{node}", patch)


def _condition(found: Json, kind: str) -> str:
    for condition in (found.get("status") or {}).get("conditions", ()):
        if condition["type"] == kind:
            return str(condition["status"])
    return ""
