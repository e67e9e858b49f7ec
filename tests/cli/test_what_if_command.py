"""`rezone what-if` on a real API server, and what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from rezone.cli.look.planned import Size, joining, size_of, what_if
from rezone.cli.look.text import text_of
from rezone.cli.main import main
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.what_if import Joining, Question
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import TaskKind, ZoneKind
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

ROWS = "0,1;1,2;2,0;0,1;1,2;2,0"
SPEC = {"partitions": 6, "replicas": 2, "dataNodes": {"count": 3}}
STATUS = {
    "dataNodes": [{"id": n, "podName": f"z-{n}", "state": "Active"} for n in range(3)],
    "nextNodeId": 3,
    "assignments": {"stable": {"revision": 1, "replicas": ROWS}, "change": 1},
}
RECORDS = [routes.initial(row, 1) for row in ((0, 1), (1, 2), (2, 0)) * 2]
PLAN = {"hash": "h", "moves": 3, "movesLowerBound": 3, "bytesEstimate": 30_000_000}


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@pytest.fixture
async def shop(api: Kube, namespace: str) -> str:
    """Return a namespace with a zone, its routes, and a task that has ended."""
    store = StatusStore(api)
    meta = {"name": "z", "namespace": namespace}
    made = await store.create(DistributionZone.parse({"metadata": meta, "spec": SPEC}))
    made = await store.write_status(made, DistributionZoneStatus.model_validate(STATUS))
    await RouteStore(api, made).create(RECORDS)
    named = {"name": "z-7", "namespace": namespace}
    task = await store.create(RebalanceTask.parse({"metadata": named, "spec": {"zoneName": "z"}}))
    ended = {"state": "Succeeded", "plan": PLAN}
    await store.write_status(task, RebalanceTaskStatus.model_validate(ended))
    return namespace


async def run(crds: Path, *arguments: str, code: int = 0) -> str:
    """Return what a command writes; it runs a loop of its own."""
    runner = CliRunner(env={"KUBECONFIG": str(crds)})
    done = await asyncio.to_thread(runner.invoke, main, ["what-if", "z", *arguments])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.proves("OB-07")
async def test_a_plan_is_shown_and_nothing_is_changed(crds: Path, api: Kube, shop: str) -> None:
    """Who asks would start what they only wanted to know about, or learn nothing."""
    before = [await api.list(kind, shop) for kind in (ZoneKind, TaskKind)]
    told = await run(crds, "-n", shop, "--without", "2")
    assert "4 replicas are copied (at least 4)" in told
    assert "NodesLeft" in told
    assert "about 40 MB in 1 s, with 10.0 MB a partition (by the plan of z-7)" in told
    found = json.loads(await run(crds, "-n", shop, "--add", "-", "-o", "json"))
    assert (found["trigger"], found["copies"], found["bytes"]) == ("NodesJoined", 3, 30_000_000)
    (added,) = (node for node in found["nodes"] if node.get("change") == "Added")
    assert (added["id"], added["replicasBefore"], added["replicasAfter"]) == (3, 0, 3)
    assert {tuple(move["added"]) for move in found["moves"]} == {(3,)}
    split = json.loads(await run(crds, "-n", shop, "--partitions", "12", "-o", "json"))
    assert (split["resharding"], split["partitions"], split["copies"]) == (True, 12, 24)
    # Each old partition's bytes are built once for each of the two replicas.
    assert abs(split["bytes"] - 120_000_000) <= 100
    refused = await run(crds, "-n", shop, "--replicas", "4")
    assert "not possible: 4 replicas need 4 data nodes" in refused
    assert "the zone has no data node 9" in await run(crds, "-n", shop, "--without", "9", code=1)
    assert [await api.list(kind, shop) for kind in (ZoneKind, TaskKind)] == before


ZONE = DistributionZone.parse({"metadata": {"name": "z"}, "spec": SPEC, "status": STATUS})


def test_without_a_size_there_are_no_bytes() -> None:
    """A guess would be read as a fact."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    gone, records = Question(without=frozenset({2})), RouteRecords(RECORDS)
    found = what_if(ZONE, records, gone, Size(None), now)
    assert (found.bytes, found.seconds) == (None, None)
    assert "bytes and time are not known" in text_of(found)
    still = text_of(what_if(ZONE, records, Question(), Size(None), now))
    assert "no plan is made" in still
    assert size_of((), 5) == Size(5, "as you say")
    assert size_of((), None) == Size(None)


def test_a_data_node_that_joins_is_told_by_its_domain_and_weight() -> None:
    """A weight that is misread plans for another machine."""
    assert joining("zone-a") == Joining("zone-a", 1)
    assert joining("zone-a=3") == Joining("zone-a", 3)
    assert joining("-") == Joining("", 1)
    for wrong in ("a=x", "a=0", "a=1001", "a=-1", "a=9999999"):
        with pytest.raises(ValueError, match="weight"):
            joining(wrong)
