"""`rezone maintenance` on a real API server: what it writes, shows and refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rezone.cli.maintenance import maintenance, shown
from rezone.domain.observed.maintenance import ANNOTATION
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.kinds import Node
from rezone.kube.stored.store import StatusStore
from rezone.resources.conditions import ConditionType, Reason, condition_of
from rezone.resources.model import ObjectMeta
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

NOW = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
NODE = "mended"


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


def called(*arguments: str, **env: str) -> Result:
    """Call the command."""
    return CliRunner().invoke(maintenance, list(arguments), env=env)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((NODE,), 2, "--for"),
        ((NODE, "--for", "1h", "--end"), 2, "--for"),
        (("--end",), 2, "name the Kubernetes node"),
        ((NODE, "--end", "-o", "json"), 2, "leave NODE out"),
    ],
)
def test_what_contradicts_itself_is_refused(
    arguments: tuple[str, ...], status: int, says: str
) -> None:
    """A node would be taken out of service, or drained, by a slip of the fingers."""
    done = called(*arguments, KUBECONFIG="/nowhere")
    assert done.exit_code == status
    assert says in done.output


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_node_is_annotated_with_an_end_and_without(api: Kube, crds: Path) -> None:
    """--for writes a time, which asking again moves on; --end takes the annotation away.

    A duration that is asked for again would count from the first time.
    """

    async def run(*arguments: str) -> Result:
        return await asyncio.to_thread(called, *arguments, KUBECONFIG=str(crds))

    async def annotation() -> str | None:
        found = await api.get(Node, "", NODE)
        text: str | None = (found["metadata"].get("annotations") or {}).get(ANNOTATION)
        return text

    await api.create(Node, {"metadata": {"name": NODE}})
    try:
        begun = dt.datetime.now(dt.UTC)
        done = await run(NODE, "--for", "1h30m")
        assert done.exit_code == 0, done.output
        text = await annotation()
        assert text is not None
        left = dt.datetime.fromisoformat(text) - begun
        assert dt.timedelta(minutes=89) < left < dt.timedelta(minutes=92)
        bad = await run(NODE, "--for", "soon")
        assert bad.exit_code == 1
        assert "soon" in bad.output
        assert await annotation() == text
        assert (await run(NODE, "--end")).exit_code == 0
        assert await annotation() is None
    finally:
        await api.delete(Node, "", NODE)


@pytest.mark.apiserver
@pytest.mark.slow
async def test_zones_say_who_is_in_maintenance(api: Kube, namespace: str) -> None:
    """Nobody would know when a machine may be switched off."""
    assert await shown(api, namespace) == ["no data node is in maintenance"]
    meta = ObjectMeta(name="orders", namespace=namespace)
    spec = {"partitions": 2, "replicas": 1, "dataNodes": {"count": 3}}
    store = StatusStore(api)
    zone = await store.create(DistributionZone.parse({"metadata": meta.dump(), "spec": spec}))
    told = condition_of(
        ConditionType.MAINTENANCE,
        value=True,
        reason=Reason.MAINTENANCE,
        message="data node 0 may stop",
        generation=1,
        now=NOW,
    )
    await store.write_status(zone, DistributionZoneStatus(conditions=(told,)))
    assert await shown(api, namespace) == ["orders: data node 0 may stop"]
