"""`rezone check` on a real API server; the test plays the operator."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rezone.cli.check import CheckFailedError, check, check_installation
from rezone.domain.observed.rollout import NOTHING
from rezone.domain.zone.status import ZoneHealth, zone_conditions
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import ExistsError
from rezone.kube.stored.store import StatusStore
from rezone.resources.conditions import Reason
from rezone.resources.model import ObjectMeta
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.proves("OP-06")]

NOW = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
STARTING = ZoneHealth(partitions=0, led=0, in_sync=0, ready_nodes=0, wanted_nodes=1)
SERVING = ZoneHealth(partitions=4, led=4, in_sync=4, ready_nodes=1, wanted_nodes=1)


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


def operator(
    store: StatusStore,
    namespace: str,
    *passes: ZoneHealth,
    stalled: tuple[Reason, str] | None = None,
) -> Callable[[float], Awaitable[None]]:
    """Return a sleep in which the operator makes its next pass over the zone."""
    left = list(passes)

    async def one_pass(_seconds: float) -> None:
        zone = await store.read(DistributionZone, namespace, "probe")
        conditions = zone_conditions(
            (),
            left.pop(0),
            stalled=stalled,
            obstacle=None,
            volumes=None,
            rebalancing="",
            paused=False,
            rollout=NOTHING,
            generation=zone.metadata.generation,
            now=NOW,
        )
        await store.write_status(zone, DistributionZoneStatus(conditions=conditions))

    return one_pass


async def test_a_zone_that_comes_to_serve_passes_and_is_gone(api: Kube, namespace: str) -> None:
    """`helm test` would call a working installation broken, or leave a zone in it."""
    store = StatusStore(api)
    sleep = operator(store, namespace, STARTING, SERVING)
    said = await check_installation(api, namespace, "probe", timeout_seconds=60, sleep=sleep)
    assert said == "Available: all 4 partitions are led and in sync"
    assert await store.find(DistributionZone, namespace, "probe") is None


async def test_a_stalled_zone_fails_at_once_with_the_operators_words(
    api: Kube, namespace: str
) -> None:
    """People would wait for the timeout to learn what the operator knew all along."""
    store = StatusStore(api)
    shortage = (Reason.NOT_ENOUGH_DATA_NODES, "add data nodes")
    sleep = operator(store, namespace, STARTING, stalled=shortage)
    with pytest.raises(CheckFailedError, match="NotEnoughDataNodes: add data nodes"):
        await check_installation(api, namespace, "probe", timeout_seconds=60, sleep=sleep)
    assert await store.find(DistributionZone, namespace, "probe") is None


async def test_a_zone_that_a_killed_check_left_is_replaced(api: Kube, namespace: str) -> None:
    """After one killed check every later one would fail, or judge the old zone."""
    store = StatusStore(api)
    left = DistributionZone.parse(
        {
            "metadata": {
                "name": "probe",
                "namespace": namespace,
                "labels": {
                    "app.kubernetes.io/name": "rezone",
                    "app.kubernetes.io/component": "check",
                },
            },
            "spec": {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}},
        }
    )
    await store.create(left)
    passes = operator(store, namespace, SERVING)

    async def sleep(seconds: float) -> None:
        if await store.find(DistributionZone, namespace, "probe") is not None:
            await passes(seconds)

    await check_installation(api, namespace, "probe", timeout_seconds=60, sleep=sleep)
    assert await store.find(DistributionZone, namespace, "probe") is None


async def test_somebody_elses_zone_is_left_alone(api: Kube, namespace: str) -> None:
    """A check must never delete a table."""
    store = StatusStore(api)
    spec = {"partitions": 1, "replicas": 1, "dataNodes": {"count": 1}}
    meta = ObjectMeta(name="probe", namespace=namespace)
    theirs = await store.create(DistributionZone.parse({"metadata": meta.dump(), "spec": spec}))
    with pytest.raises(ExistsError, match="choose another --name"):
        await check_installation(api, namespace, "probe", timeout_seconds=60)
    found = await store.read(DistributionZone, namespace, "probe")
    assert found.metadata.uid == theirs.metadata.uid


def test_without_an_operator_it_fails_in_time(crds: Path, namespace_name: str) -> None:
    """The hook's pod would hang until Helm gives up, and say nothing."""
    done = CliRunner().invoke(
        check, ["-n", namespace_name, "--timeout-seconds", "1"], env={"KUBECONFIG": str(crds)}
    )
    assert done.exit_code == 1
    assert "not ready in 1 s: the operator has not seen the zone" in done.output


@pytest.fixture
def namespace_name(namespace: str) -> str:
    """Return a fresh namespace to a test that runs a loop of its own."""
    return namespace
