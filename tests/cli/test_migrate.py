"""`rezone migrate` on a real API server: what it asks for, and what it says when it fails.

The test plays the operator. That a move and the way back succeed is shown with one, in
`tests/controller/on_cluster/test_controller_operator.py`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from rezone.cli.migrate import failback_target, migrate, move
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import MissingError
from rezone.kube.stored.store import StatusStore
from rezone.resources.conditions import ConditionType, Reason, condition_of
from rezone.resources.migration import (
    MigrationState,
    OldLeaderPolicy,
    RegionMigration,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.resources.model import ObjectMeta
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    Assignment,
    Assignments,
    DistributionZoneStatus,
    RetainedReplica,
)
from rezone.wire.layouts import id_of

NOW = dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
SPEC = RegionMigrationSpec(zone_name="orders", partition=0)


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@pytest.fixture
def namespace_name(namespace: str) -> str:
    """Return a fresh namespace to a test that runs a loop of its own."""
    return namespace


def called(*arguments: str, **env: str) -> Result:
    """Call the command."""
    return CliRunner().invoke(migrate, list(arguments), env=env)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--failback", "--to", "1"), "--failback says where to"),
        (("--remove", "--retain-seconds", "60"), "--remove keeps nothing"),
        (("--to", "-1"), "-1 is not in the range x>=0"),
        (("--timeout-seconds", "0"), "0.0 is not in the range x>=1"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_is_asked_for(
    options: tuple[str, ...], says: str
) -> None:
    """A leader would move to another node than the one that was meant."""
    done = called("orders", "0", *options, KUBECONFIG="/nowhere")
    assert done.exit_code == 2
    assert says in done.output


def kept(node: int, *, partition: int = 0, generation: int = 2, hours: int = 0) -> RetainedReplica:
    """Return an old leader that is kept since some hours after NOW."""
    return RetainedReplica(
        partition=id_of(generation, partition),
        node=node,
        migration=f"m-{node}",
        retained_time=NOW + dt.timedelta(hours=hours),
    )


async def zone_that_keeps(store: StatusStore, namespace: str, *old: RetainedReplica) -> None:
    """Make a zone of two partitions of generation 2 that keeps old leaders."""
    meta = ObjectMeta(name="orders", namespace=namespace)
    spec = {"partitions": 2, "replicas": 1, "dataNodes": {"count": 3}}
    zone = await store.create(DistributionZone.parse({"metadata": meta.dump(), "spec": spec}))
    stable = Assignment(revision=5, replicas="0;1", layout_version=2)
    keys = Assignments(stable=stable, change=5, last_layout_version=2, retained=old)
    await store.write_status(zone, DistributionZoneStatus(assignments=keys))


@pytest.mark.apiserver
@pytest.mark.slow
async def test_back_is_where_the_leader_of_just_this_partition_was_last(
    api: Kube, namespace: str
) -> None:
    """It would move to where another partition's leader was, or one of before a re-sharding."""
    store = StatusStore(api)
    old = (
        kept(1, hours=1),
        kept(2, hours=3),
        kept(3, hours=2),
        kept(4, partition=1, hours=9),
        kept(5, generation=1, hours=9),
    )
    await zone_that_keeps(store, namespace, *old)
    assert await failback_target(store, namespace, "orders", 0) == 2
    assert await failback_target(store, namespace, "orders", 1) == 4


@pytest.mark.apiserver
@pytest.mark.slow
async def test_without_a_kept_leader_there_is_no_failback(api: Kube, namespace: str) -> None:
    """The operator would be left to choose a node, which may need a copy."""
    store = StatusStore(api)
    await zone_that_keeps(store, namespace, kept(5, generation=1))
    with pytest.raises(click.ClickException, match="keeps no old leader of partition 0: name a"):
        await failback_target(store, namespace, "orders", 0)
    with pytest.raises(MissingError):
        await failback_target(store, namespace, "other", 0)


def operator(
    store: StatusStore, namespace: str, *states: tuple[MigrationState, str]
) -> Callable[[float], Awaitable[None]]:
    """Return a sleep in which the operator brings the only migration to its next state."""
    left = list(states)

    async def one_pass(_seconds: float) -> None:
        (found,) = await store.list(RegionMigration, namespace)
        state, message = left.pop(0)
        ended = {MigrationState.SUCCEEDED: True, MigrationState.ROLLED_BACK: False}.get(state)
        said = condition_of(
            ConditionType.SUCCEEDED, ended, Reason.RUNNING, message, generation=1, now=NOW
        )
        status = RegionMigrationStatus(state=state, conditions=(said,))
        await store.write_status(found, status)

    return one_pass


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.parametrize(
    "end", [MigrationState.SUCCEEDED, MigrationState.ROLLED_BACK, MigrationState.FAILED], ids=str
)
async def test_it_waits_for_the_end_and_fails_when_that_is_no_success(
    api: Kube, namespace: str, end: MigrationState
) -> None:
    """A script would go on as if the leader had moved, or wait for what is over."""
    store = StatusStore(api)
    passes = operator(
        store, namespace, (MigrationState.OPEN_CANDIDATE, "opens"), (end, "node 1 was lost")
    )

    async def moved() -> str:
        return await move(api, namespace, SPEC, timeout_seconds=60, sleep=passes)

    if end is MigrationState.SUCCEEDED:
        assert (await moved()).endswith("Succeeded: node 1 was lost")
    else:
        with pytest.raises(click.ClickException, match=f"orders-0-.*: {end}: node 1 was lost"):
            await moved()


def asked_for(namespace: str, kubeconfig: Path, *options: str) -> RegionMigrationSpec:
    """Call the command without an operator; return the spec that it has asked for."""
    options = ("-n", namespace, "--timeout-seconds", "1", *options)
    done = called("orders", "0", *options, KUBECONFIG=str(kubeconfig))
    assert done.exit_code == 1
    assert "has not ended in 1 s and goes on: the operator has not seen it" in done.output
    name = done.output.split()[1]

    async def read() -> RegionMigration:
        async with await connect(kubeconfig) as api:
            return await StatusStore(api).read(RegionMigration, namespace, name)

    return asyncio.run(read()).spec


@pytest.mark.apiserver
@pytest.mark.slow
def test_what_is_not_over_in_time_goes_on_and_is_named(crds: Path, namespace_name: str) -> None:
    """Nobody would know how to look after the move, or would ask for it once more."""
    spec = asked_for(namespace_name, crds, "--to", "2", "--retain-seconds", "60")
    assert (spec.zone_name, spec.partition, spec.target) == ("orders", 0, 2)
    assert (spec.old_leader_policy, spec.retain_old_leader_seconds) == (OldLeaderPolicy.RETAIN, 60)


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.proves("B-13")
def test_on_the_failback_nothing_is_kept_unless_it_is_asked_for(
    crds: Path, namespace_name: str
) -> None:
    """Each move there and back would leave one replica more than the zone asks for."""

    async def make() -> None:
        async with await connect(crds) as api:
            await zone_that_keeps(StatusStore(api), namespace_name, kept(2))

    asyncio.run(make())
    spec = asked_for(namespace_name, crds, "--failback")
    assert (spec.target, spec.old_leader_policy) == (2, OldLeaderPolicy.REMOVE)
    spec = asked_for(namespace_name, crds, "--failback", "--retain-seconds", "60")
    assert (spec.target, spec.old_leader_policy) == (2, OldLeaderPolicy.RETAIN)


@pytest.mark.apiserver
@pytest.mark.slow
def test_errors_of_the_api_server_are_said_in_a_line(crds: Path, namespace_name: str) -> None:
    """People would read a traceback in place of the name that they have mistyped."""
    done = called("orders", "0", "--failback", "-n", namespace_name, KUBECONFIG=str(crds))
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    assert done.output.startswith("Error: ")
    assert "orders" in done.output
