"""The sharded route table on the real API server."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from kube_helpers import records_of, stored_zone, zone_of

from rezone.domain.model.world import RouteChange
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.route_shards import shard_name
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ForeignObjectError
from rezone.kube.api.kinds import ConfigMap
from rezone.kube.stored.routes import DamagedRoutesError, RouteStore, highest_coordinator_epoch
from rezone.wire.messages import LeaderAndIsr

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]


def moved(partition: int, record: LeaderAndIsr, leader: int = 7) -> RouteChange:
    """Return a change that gives the partition a new leader."""
    state = msgspec.structs.replace(
        record,
        leader=leader,
        leader_epoch=record.leader_epoch + 1,
        partition_epoch=record.partition_epoch + 1,
        isr=(leader,),
        replicas=(*record.replicas, leader),
    )
    return RouteChange(partition=partition, expected_epoch=record.partition_epoch, state=state)


async def test_table_over_several_shards(api: Kube, namespace: str) -> None:
    """With a shard lost or mixed up a partition would be led by a stranger."""
    zone = await stored_zone(api, namespace, partitions=600)
    store = RouteStore(api, zone)
    records = records_of(600)
    await store.create(records)
    assert await store.load() == RouteRecords(records)
    await store.create(records)
    with pytest.raises(ValueError, match="600 partitions, not 8"):
        await store.create(records_of(8))
    shards = await api.list(ConfigMap, namespace, labels={"rezone.dev/zone": "orders"})
    assert {shard["metadata"]["name"] for shard in shards} == {
        shard_name("orders", number) for number in range(3)
    }


async def test_unfinished_creation_is_no_table_and_is_finished(api: Kube, namespace: str) -> None:
    """Half a table taken for a whole one would leave partitions without a leader."""
    zone = await stored_zone(api, namespace, partitions=300)
    store = RouteStore(api, zone)
    await store.create(records_of(300, coordinator_epoch=1))
    await api.delete(ConfigMap, namespace, shard_name("orders", 0))
    assert await store.load() == RouteRecords()
    await RouteStore(api, zone).create(records_of(300, coordinator_epoch=2))
    assert await store.load() == RouteRecords(records_of(300, coordinator_epoch=2))


async def test_used_table_without_its_first_shard_is_damage(api: Kube, namespace: str) -> None:
    """Created again it would begin with used epochs and untrue in-sync sets: lost writes."""
    zone = await stored_zone(api, namespace, partitions=300)
    store = RouteStore(api, zone)
    records = records_of(300)
    await store.create(records)
    assert await store.change([moved(299, records[299])]) == {299}
    await api.delete(ConfigMap, namespace, shard_name("orders", 0))
    with pytest.raises(DamagedRoutesError, match="first shard is missing"):
        await store.load()
    with pytest.raises(DamagedRoutesError, match="first shard is missing"):
        await store.create(records)


async def test_hole_is_damage(api: Kube, namespace: str) -> None:
    """A hole that is filled in or skipped shifts or resets partitions."""
    zone = await stored_zone(api, namespace, partitions=300)
    store = RouteStore(api, zone)
    await store.create(records_of(300))
    await api.delete(ConfigMap, namespace, shard_name("orders", 1))
    with pytest.raises(DamagedRoutesError, match="44 partitions have no record"):
        await store.load()


async def test_two_writers_of_one_shard(api: Kube, namespace: str) -> None:
    """A PUT of a whole shard must not take back what another wrote in it meanwhile."""
    zone = await stored_zone(api, namespace)
    records = records_of(8)
    one, two = RouteStore(api, zone), RouteStore(api, zone)
    await one.create(records)
    assert await two.load() == RouteRecords(records)
    first = [moved(p, records[p], leader=5) for p in range(4)]
    second = [moved(p, records[p], leader=6) for p in range(3, 8)]

    done = await asyncio.gather(one.change(first), two.change(second))

    assert len(done[0] & done[1]) == 0, "both believe to have moved partition 3"
    assert done[0] | done[1] == set(range(8))
    stored = await one.load()
    for changes, applied in ((first, done[0]), (second, done[1])):
        for change in changes:
            assert (stored[change.partition] == change.state) == (change.partition in applied)


async def test_many_writers_make_progress_and_count_right(api: Kube, namespace: str) -> None:
    """Each applied change must be there exactly once, however the writers interleave."""
    zone = await stored_zone(api, namespace)
    records = records_of(8)
    await RouteStore(api, zone).create(records)

    async def write(partition: int) -> None:
        store = RouteStore(api, zone)
        await store.load()
        for _ in range(3):
            record = (await store.load())[partition]
            assert await store.change([moved(partition, record)]) == {partition}

    await asyncio.gather(*(write(p) for p in range(4)))
    stored = await RouteStore(api, zone).load()
    assert [r.partition_epoch for r in stored.values()] == [4, 4, 4, 4, 1, 1, 1, 1]


async def test_stale_change_is_left_alone_and_repeat_is_done(api: Kube, namespace: str) -> None:
    """A repeat after an unknown outcome must not look like a lost race, nor the other way round."""
    zone = await stored_zone(api, namespace)
    records = records_of(8)
    store = RouteStore(api, zone)
    await store.create(records)
    change = moved(2, records[2])
    assert await store.change([change]) == {2}
    assert await RouteStore(api, zone).change([change]) == {2}
    assert await store.change([moved(2, records[2], leader=9), moved(3, records[3])]) == {3}
    assert (await store.load())[2] == change.state


async def test_stale_base_is_read_again(api: Kube, namespace: str) -> None:
    """A store that remembers an old shard must not refuse what fits the stored one."""
    zone = await stored_zone(api, namespace)
    records = records_of(8)
    old, new = RouteStore(api, zone), RouteStore(api, zone)
    await old.create(records)
    change = moved(1, records[1])
    await new.change([change])
    assert await old.change([moved(1, change.state, leader=8)]) == {1}


async def test_replaced_coordinator_is_refused(api: Kube, namespace: str) -> None:
    """A deposed process with the right partition epoch still must not write its lower epoch."""
    zone = await stored_zone(api, namespace)
    store = RouteStore(api, zone)
    records = records_of(8, coordinator_epoch=5)
    await store.create(records)
    late = moved(0, msgspec.structs.replace(records[0], coordinator_epoch=4))
    assert await store.change([late]) == frozenset()
    assert await highest_coordinator_epoch(api, namespace) == 5


@pytest.mark.proves("B-08")
async def test_a_partition_begins_again_once_by_its_own_record(api: Kube, namespace: str) -> None:
    """A repeat would empty it again, or its first epoch be taken for one that fell back."""
    zone = await stored_zone(api, namespace)
    store = RouteStore(api, zone)
    records = records_of(8)
    await store.create(records)
    used = moved(0, records[0])
    again = routes.begin_again(used.state, (0, 1), 1)
    assert isinstance(again, LeaderAndIsr)
    change = RouteChange(partition=0, expected_epoch=used.state.partition_epoch, state=again)
    assert await store.change([used]) == {0}
    assert await store.change([change]) == {0}
    later = moved(0, again)
    assert await store.change([later]) == {0}
    assert await store.change([change]) == frozenset(), "the epoch is the expected one again"
    assert (await store.load())[0] == later.state


async def test_changes_that_are_bugs(api: Kube) -> None:
    """An epoch that is skipped would break every later compare."""
    store = RouteStore(api, zone_of())
    record = routes.initial((0, 1), 1)
    later = moved(0, record).state
    with pytest.raises(ValueError, match="does not follow"):
        await store.change([RouteChange(partition=0, expected_epoch=5, state=later)])
    with pytest.raises(ValueError, match="two changes of partition 0"):
        await store.change([moved(0, record), moved(0, record)])


async def test_foreign_shard_is_refused(api: Kube, namespace: str) -> None:
    """A ConfigMap that happens to have the name is somebody's, not a route table."""
    zone = await stored_zone(api, namespace)
    name = shard_name("orders", 0)
    await api.create(ConfigMap, {"metadata": {"name": name, "namespace": namespace}})
    store = RouteStore(api, zone)
    assert await store.load() == RouteRecords()
    with pytest.raises(ForeignObjectError):
        await store.create(records_of(8))
    with pytest.raises(ForeignObjectError):
        await store.change([moved(0, records_of(8)[0])])
