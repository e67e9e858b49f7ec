"""Route tables of two layouts on the real API server: made, changed and deleted, also half-way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from kube_helpers import records_of, stored_zone

from rezone.domain.model.world import RouteChange
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.route_shards import SHARDS_PER_GENERATION, shard_name
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ConflictWriteError, UnavailableError
from rezone.kube.api.kinds import ConfigMap
from rezone.kube.stored.routes import DamagedRoutesError, RouteStore
from rezone.wire.layouts import id_of
from rezone.wire.messages import LeaderAndIsr, PartitionId

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]

OLD, NEW = records_of(300, coordinator_epoch=1), records_of(600, coordinator_epoch=2)
BOTH = RouteRecords(OLD).with_next(NEW, 2)


def moved(table: RouteRecords, partition: PartitionId) -> RouteChange:
    """Return a change of one record."""
    before = table[partition]
    state = msgspec.structs.replace(before, partition_epoch=before.partition_epoch + 1)
    return RouteChange(partition=partition, expected_epoch=before.partition_epoch, state=state)


async def store_of(api: Kube, namespace: str) -> RouteStore:
    """Return the store of a zone that has its first layout."""
    store = RouteStore(api, await stored_zone(api, namespace, partitions=300))
    await store.create(OLD)
    return store


async def shards_in(api: Kube, namespace: str) -> set[int]:
    """Return the numbers of the zone's ConfigMaps."""
    found = await api.list(ConfigMap, namespace, labels={"rezone.dev/zone": "orders"})
    names = [each["metadata"]["name"] for each in found]
    numbers = {int(name.rpartition("-")[2]) for name in names}
    assert set(names) == {shard_name("orders", number) for number in numbers}
    return numbers


def dies_after(
    monkeypatch: pytest.MonkeyPatch, api: Kube, methods: Sequence[str], calls: int
) -> None:
    """Have the connection break after so many calls of some methods."""
    left = [calls]

    def dying(real: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise UnavailableError("the operator is gone")
            left[0] -= 1
            return await real(*args, **options)

        return call

    for method in methods:
        monkeypatch.setattr(api, method, dying(getattr(api, method)))


async def create_half(
    store: RouteStore, api: Kube, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Create the new layout until so many of its ConfigMaps are written."""
    with monkeypatch.context() as broken:
        dies_after(broken, api, ["create"], written)
        with pytest.raises(UnavailableError):
            await store.create(NEW, 2)


def numbers_of(generation: int, count: int) -> set[int]:
    """Return the shards of a layout that has so many."""
    return {generation * SHARDS_PER_GENERATION + index for index in range(count)}


async def test_the_records_of_two_layouts_stand_beside_one_another(
    api: Kube, namespace: str
) -> None:
    """A record of one would be taken for the other's, or a change go to the wrong one."""
    store = await store_of(api, namespace)
    await store.create(NEW, 2)
    assert await shards_in(api, namespace) == numbers_of(0, 2) | numbers_of(2, 3)
    assert await RouteStore(api, store._zone).load() == BOTH
    changes = [moved(BOTH, 17), moved(BOTH, id_of(2, 17)), moved(BOTH, id_of(2, 599))]
    assert await store.change(changes) == {each.partition for each in changes}
    assert await store.load() == BOTH.changed({each.partition: each.state for each in changes})


async def test_a_layout_that_is_there_is_left_alone(api: Kube, namespace: str) -> None:
    """A repeat of its creation would bring back the epochs it began with."""
    store = await store_of(api, namespace)
    await store.create(NEW, 2)
    await store.change([moved(BOTH, id_of(2, 0))])
    await store.create(NEW, 2)
    assert (await store.load())[id_of(2, 0)].partition_epoch == 2
    with pytest.raises(ValueError, match="600 partitions, not 8"):
        await store.create(records_of(8), 2)
    with pytest.raises(ValueError, match="cannot follow"):
        await store.create(records_of(8), 3)


@pytest.mark.parametrize("written", [0, 1, 2])
async def test_the_creation_of_a_layout_goes_on_where_it_stopped(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Half a layout taken for a whole one would leave ranges that nobody can serve."""
    store = await store_of(api, namespace)
    await create_half(store, api, monkeypatch, written)
    assert await store.load() == RouteRecords(OLD)
    assert len(await shards_in(api, namespace)) == 2 + written
    await store.create(NEW, 2)
    assert await store.load() == BOTH


def learned(coordinator_epoch: int) -> tuple[LeaderAndIsr, ...]:
    """Return records of a layout that data nodes tell: none is a first one."""
    return tuple(
        msgspec.structs.replace(each, partition_epoch=5)
        for each in records_of(600, coordinator_epoch=coordinator_epoch)
    )


@pytest.mark.proves("NW-06")
async def test_a_learned_layout_is_written_by_operators_that_end_after_each_write(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first of them wrote would pass for a damaged table, for good."""
    store = await store_of(api, namespace)
    for written in range(3):
        assert await store.load() == RouteRecords(OLD)
        with monkeypatch.context() as broken:
            dies_after(broken, api, ["create", "replace"], written)
            with pytest.raises(UnavailableError):
                await store.create(learned(3 + written), 2)
        store = RouteStore(api, store._zone)
    assert await store.load() == RouteRecords(OLD)
    await store.create(learned(9), 2)
    assert await store.load() == RouteRecords(OLD).with_next(learned(9), 2)


@pytest.mark.proves("NW-06")
async def test_a_learned_layout_in_use_without_its_first_shard_is_damage(
    api: Kube, namespace: str
) -> None:
    """Learned once more it would get records back that the operator has changed since."""
    store = await store_of(api, namespace)
    await store.create(learned(3), 2)
    table = await store.load()
    await store.change([moved(table, id_of(2, 599))])
    first = shard_name("orders", 2 * SHARDS_PER_GENERATION)
    await api.delete(ConfigMap, namespace, first)
    with pytest.raises(DamagedRoutesError, match="first shard is missing"):
        await store.load()
    with pytest.raises(DamagedRoutesError, match="first shard is missing"):
        await store.create(learned(4), 2)


async def test_what_was_created_half_and_given_up_goes_with_the_next(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ConfigMaps would stay for ever."""
    store = await store_of(api, namespace)
    await create_half(store, api, monkeypatch, 2)
    await store.create(records_of(8), 3)
    assert await shards_in(api, namespace) == numbers_of(0, 2) | numbers_of(3, 1)


@pytest.mark.parametrize("generation", [0, 2], ids=["old", "new"])
@pytest.mark.parametrize("deleted", [0, 1])
async def test_the_deletion_of_a_layout_goes_on_where_it_stopped(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch, generation: int, deleted: int
) -> None:
    """Its rest would pass for damage, and the zone's passes stop; or for partitions that serve."""
    store = await store_of(api, namespace)
    await store.create(NEW, 2)
    used = moved(BOTH, id_of(generation, 299))
    await store.change([used])
    with monkeypatch.context() as broken:
        dies_after(broken, api, ["delete"], deleted)
        with pytest.raises(UnavailableError):
            await store.delete(generation)
    after = RouteStore(api, store._zone)
    assert await after.load() == BOTH.without(generation)
    assert after.retired == {generation}
    await after.delete(generation)
    assert await after.load() == BOTH.without(generation)
    assert not after.retired
    left = {0: numbers_of(2, 3), 2: numbers_of(0, 2)}
    assert await shards_in(api, namespace) == left[generation]
    await after.delete(generation)


async def test_an_unfinished_layout_can_be_deleted(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a re-sharding that was cancelled early has begun would stay."""
    store = await store_of(api, namespace)
    await create_half(store, api, monkeypatch, 2)
    await store.delete(2)
    assert await shards_in(api, namespace) == numbers_of(0, 2)


async def test_the_only_layout_is_never_deleted(api: Kube, namespace: str) -> None:
    """A zone would have lost all that it knows of its rows."""
    store = await store_of(api, namespace)
    with pytest.raises(ValueError, match="no other layout than generation 0"):
        await store.delete(0)
    assert await store.load() == RouteRecords(OLD)


async def test_a_layout_that_changes_is_not_deleted(
    api: Kube, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that somebody else goes on with would be deleted by a coordinator that was replaced."""
    store = await store_of(api, namespace)
    await store.create(NEW, 2)
    other, real = RouteStore(api, store._zone), api.list

    async def overtaken(*args: Any, **options: Any) -> Any:
        found = await real(*args, **options)
        await other.change([moved(BOTH, id_of(2, 0))])
        return found

    with monkeypatch.context() as late:
        late.setattr(api, "list", overtaken)
        with pytest.raises(ConflictWriteError):
            await store.delete(2)
    assert len(await store.load()) == len(BOTH)


@pytest.mark.parametrize("generation", [0, 2], ids=["old", "new"])
async def test_a_used_layout_without_its_first_shard_is_damage(
    api: Kube, namespace: str, generation: int
) -> None:
    """Rows would be given up that are all there."""
    store = await store_of(api, namespace)
    await store.create(NEW, 2)
    await store.change([moved(BOTH, id_of(generation, 299))])
    first = shard_name("orders", generation * SHARDS_PER_GENERATION)
    await api.delete(ConfigMap, namespace, first)
    with pytest.raises(DamagedRoutesError, match="first shard is missing"):
        await store.load()
    with pytest.raises(DamagedRoutesError, match="first shard is missing"):
        await store.delete(generation)
