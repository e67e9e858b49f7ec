"""`rezone migrate`: move the leader of one partition, or move it back to where it was.

It applies a RegionMigration and waits for its end. `--failback` finds the old leader that the zone
still keeps (`status.assignments.retained`): it is in sync, so the way back needs no copy (B-13).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import click

from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError
from rezone.kube.stored.store import StatusStore
from rezone.resources.conditions import ConditionType
from rezone.resources.migration import (
    TERMINAL_MIGRATION_STATES,
    MigrationState,
    OldLeaderPolicy,
    RegionMigration,
    RegionMigrationSpec,
)
from rezone.resources.model import ObjectMeta
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import RetainedReplica
from rezone.wire.layouts import id_of

PAUSE_SECONDS: Final = 0.2

Sleep = Callable[[float], Awaitable[None]]


@click.command("migrate")
@click.argument("zone")
@click.argument("partition", type=click.IntRange(min=0))
@click.option("--to", type=click.IntRange(min=0), help="The data node that shall lead.")
@click.option("--failback", is_flag=True, help="Move back to the old leader that is still kept.")
@click.option(
    "--retain-seconds",
    type=click.IntRange(min=0),
    help="How long the old leader stays beside the assignment; default: without end.",
)
@click.option(
    "--remove", is_flag=True, help="Remove the old leader; what --failback does by itself."
)
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="How long to wait for the end; the migration goes on.",
)
@click.option("--namespace", "-n", help="The zone's namespace; default: the context's.")
def migrate(
    zone: str,
    partition: int,
    *,
    to: int | None,
    failback: bool,
    retain_seconds: int | None,
    remove: bool,
    timeout_seconds: float,
    namespace: str | None,
) -> None:
    """Move the leader of PARTITION of ZONE to another data node, or back.

    Without --to and --failback the operator chooses the node.
    """
    if to is not None and failback:
        raise click.UsageError("--failback says where to: leave --to out")
    if remove and retain_seconds is not None:
        raise click.UsageError("--remove keeps nothing: leave --retain-seconds out")

    async def run() -> str:
        async with await connect() as kube:
            store, place = StatusStore(kube), namespace or kube.namespace
            target = await failback_target(store, place, zone, partition) if failback else to
            removes = remove or (failback and retain_seconds is None)
            spec = RegionMigrationSpec(
                zone_name=zone,
                partition=partition,
                target=target,
                old_leader_policy=OldLeaderPolicy.REMOVE if removes else OldLeaderPolicy.RETAIN,
                retain_old_leader_seconds=retain_seconds,
            )
            return await move(kube, place, spec, timeout_seconds=timeout_seconds)

    begun = time.monotonic()
    try:
        said = asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{said} ({time.monotonic() - begun:.1f} s)")


async def failback_target(store: StatusStore, namespace: str, zone: str, partition: int) -> int:
    """Return the data node that the partition's leader was moved away from last.

    Raises click.ClickException when none is kept, KubeError.
    """
    found = await store.read(DistributionZone, namespace, zone)
    keys = found.status.assignments if found.status is not None else None
    generation = keys.stable.layout_version if keys is not None and keys.stable is not None else 0
    kept = [k for k in keys.retained if k.partition == id_of(generation, partition)] if keys else []
    if not kept:
        raise click.ClickException(
            f"zone {zone} keeps no old leader of partition {partition}: name a node with --to"
        )
    return max(kept, key=_since).node


def _since(each: RetainedReplica) -> datetime:
    return each.retained_time


async def move(
    kube: Kube,
    namespace: str,
    spec: RegionMigrationSpec,
    *,
    timeout_seconds: float,
    sleep: Sleep = asyncio.sleep,
) -> str:
    """Apply a migration and return what it says at its end.

    Raises click.ClickException when it did not succeed, or not in time, and KubeError.
    """
    store = StatusStore(kube)
    name = f"{spec.zone_name}-{spec.partition}-{datetime.now(UTC):%Y%m%d%H%M%S}"
    meta = ObjectMeta(name=name, namespace=namespace, labels={"rezone.dev/zone": spec.zone_name})
    await store.create(RegionMigration(metadata=meta, spec=spec))
    said = "the operator has not seen it"
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                ended, said = _standing(await store.read(RegionMigration, namespace, name), said)
                if ended:
                    return f"{name}: {said}"
                await sleep(PAUSE_SECONDS)
    except TimeoutError:
        raise click.ClickException(
            f"{name} has not ended in {timeout_seconds:.0f} s and goes on: {said}"
        ) from None


def _standing(migration: RegionMigration, before: str) -> tuple[bool, str]:
    """Return whether it has ended and what it says; click.ClickException when it failed."""
    status = migration.status
    if status is None:
        return False, before
    told = [c for c in status.conditions if c.type == ConditionType.SUCCEEDED]
    said = f"{status.state}: {told[0].message}" if told else before
    if status.state in TERMINAL_MIGRATION_STATES - {MigrationState.SUCCEEDED}:
        raise click.ClickException(f"{migration.metadata.name}: {said}")
    return status.state == MigrationState.SUCCEEDED, said
