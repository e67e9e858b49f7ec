"""`rezone check`: whether an installation works, by a small zone that must come to serve.

It is what `helm test` runs. The zone has one data node that keeps its rows in memory, so it needs
neither a volume nor a second machine. It is deleted in any case; one that a killed check has left
is found by its label and replaced, any other object of that name is left alone.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import click

from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import ExistsError, KubeError
from rezone.kube.stored.store import StatusStore
from rezone.resources.conditions import ConditionStatus, ConditionType
from rezone.resources.model import ObjectMeta
from rezone.resources.zone import DataNodesSpec, DistributionZone, DistributionZoneSpec, StorageSpec
from rezone.wire.messages import EngineKind

LABELS: Final = {"app.kubernetes.io/name": "rezone", "app.kubernetes.io/component": "check"}
PARTITIONS: Final = 4
PAUSE_SECONDS: Final = 1.0

Sleep = Callable[[float], Awaitable[None]]


class CheckFailedError(Exception):
    """The zone did not become ready; the message says what the operator said last."""


@click.command("check")
@click.option("--namespace", "-n", help="Where to make the zone; default: the context's.")
@click.option("--name", default="rezone-check", show_default=True, help="The zone's name.")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=1),
    default=240.0,
    show_default=True,
    help="How long the zone may take to become ready.",
)
def check(namespace: str | None, name: str, timeout_seconds: float) -> None:
    """Make a small zone, wait until it is ready, and delete it."""

    async def run() -> str:
        async with await connect() as kube:
            place = namespace or kube.namespace
            return await check_installation(kube, place, name, timeout_seconds=timeout_seconds)

    started = time.monotonic()
    try:
        said = asyncio.run(run())
    except (CheckFailedError, KubeError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"zone {name} is ready after {time.monotonic() - started:.0f} s: {said}")


async def check_installation(
    kube: Kube,
    namespace: str,
    name: str,
    *,
    timeout_seconds: float,
    sleep: Sleep = asyncio.sleep,
) -> str:
    """Return what Ready says once the zone is ready. Raises CheckFailedError, KubeError."""
    store = StatusStore(kube)
    said = "the operator has not seen the zone"
    async with _small_zone(store, namespace, name, sleep):
        try:
            async with asyncio.timeout(timeout_seconds):
                while True:
                    zone = await store.read(DistributionZone, namespace, name)
                    ready, said = _standing(zone, said)
                    if ready:
                        return said
                    await sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise CheckFailedError(f"not ready in {timeout_seconds:.0f} s: {said}") from None


@contextlib.asynccontextmanager
async def _small_zone(
    store: StatusStore,
    namespace: str,
    name: str,
    sleep: Sleep,
) -> AsyncIterator[None]:
    zone = DistributionZone(
        metadata=ObjectMeta(name=name, namespace=namespace, labels=LABELS),
        spec=DistributionZoneSpec(
            partitions=PARTITIONS,
            replicas=1,
            storage=StorageSpec(engine=EngineKind.MEMORY),
            data_nodes=DataNodesSpec(count=1),
        ),
    )
    await _remove_left_over(store, namespace, name, sleep)
    await store.create(zone)
    try:
        yield
    finally:
        await store.delete(zone)


async def _remove_left_over(store: StatusStore, namespace: str, name: str, sleep: Sleep) -> None:
    while (found := await store.find(DistributionZone, namespace, name)) is not None:
        if not LABELS.items() <= found.metadata.labels.items():
            raise ExistsError(f"zone {namespace}/{name} is not of a check: choose another --name")
        await store.delete(found)
        await sleep(PAUSE_SECONDS)


def _standing(zone: DistributionZone, before: str) -> tuple[bool, str]:
    """Return whether the zone is ready and what it says; CheckFailedError when it is stalled."""
    conditions = {c.type: c for c in zone.status.conditions} if zone.status is not None else {}
    stalled = conditions.get(ConditionType.STALLED)
    if stalled is not None and stalled.status is ConditionStatus.TRUE:
        raise CheckFailedError(f"{stalled.reason}: {stalled.message}")
    ready = conditions.get(ConditionType.READY)
    if ready is None:
        return False, before
    return ready.status is ConditionStatus.TRUE, f"{ready.reason}: {ready.message}"
