"""Route records in ConfigMaps: both versions of the JSON, 256 in a shard, and the size."""

import json

import pytest

from rezone.domain.routing import route_checks, route_shards, routes
from rezone.domain.routing.route_shards import RouteShardError
from rezone.wire.messages import LeaderAndIsr

# The two examples of the seed.
VERSION_1 = '{"version":1,"leader":1,"leader_epoch":10,"isr":[1,2,3],"coordinator_epoch":1000}'
VERSION_2 = (
    '{"version":2,"leader":1,"leader_epoch":10,"isr":[1,2,3],"coordinator_epoch":1000,'
    '"hot_standby_replica":1,"iss":[1]}'
)
# As large as a record can be: seven replicas with long ids, all fields set.
LARGEST = LeaderAndIsr(
    leader=2**31 - 7,
    leader_epoch=2**53,
    isr=tuple(range(2**31 - 7, 2**31)),
    coordinator_epoch=2**53,
    partition_epoch=2**53,
    replicas=tuple(range(2**31 - 7, 2**31)),
    hot_standby_replica=2**31 - 1,
    iss=tuple(range(2**31 - 6, 2**31)),
    next_leader=2**31 - 1,
    next_epoch=2**53 + 1,
)


@pytest.mark.proves("HS-01")
def test_a_version_1_record_is_read() -> None:
    """An upgrade would forget who leads."""
    record = route_shards.decode_record(VERSION_1)
    assert record == LeaderAndIsr(
        leader=1, leader_epoch=10, isr=(1, 2, 3), coordinator_epoch=1000, replicas=(1, 2, 3)
    )
    assert route_checks.violations(record) == ()


@pytest.mark.proves("HS-01")
def test_a_version_2_record_has_the_seed_s_fields() -> None:
    """Another program that knows the seed could not read it."""
    record = route_shards.decode_record(VERSION_2)
    assert (record.hot_standby_replica, record.iss) == (1, (1,))
    assert route_checks.violations(record) == ()
    stored = json.loads(route_shards.encode_record(record))
    assert stored.items() >= json.loads(VERSION_2).items()


@pytest.mark.proves("HS-01")
def test_unknown_fields_are_passed_over_and_newer_versions_refused() -> None:
    """Mixed operators during an upgrade would stop, or the older one lose what it cannot see."""
    known = json.loads(VERSION_2)
    text = json.dumps({**known, "colour": "blue"})
    assert route_shards.decode_record(text) == route_shards.decode_record(VERSION_2)
    with pytest.raises(RouteShardError, match="newer operator"):
        route_shards.decode_record(json.dumps({**known, "version": 3}))
    for wrong in ("", "[]", '{"leader":"one"}'):
        with pytest.raises(RouteShardError, match="not a route record"):
            route_shards.decode_record(wrong)


@pytest.mark.parametrize("partitions", [1, 255, 256, 257, 1000])
def test_all_records_come_back_from_their_shards(partitions: int) -> None:
    """A partition at the edge of a shard would be lost or be another one's."""
    records = [routes.initial((p % 9, 9), 1) for p in range(partitions)]
    shards = route_shards.encode_routes(records)
    assert len(shards) == -(-partitions // route_shards.PARTITIONS_PER_SHARD)
    assert all(len(data) <= 256 for data in shards.values())
    for partition in {0, partitions - 1}:
        assert str(partition) in shards[route_shards.shard_of(partition)]
    back = route_shards.decode_routes(reversed(shards.values()), partitions)
    assert back == tuple(records)


def test_the_largest_zone_s_shards_are_under_a_mebibyte() -> None:
    """The API server would refuse the routes of a large zone in the middle of a move."""
    data = route_shards.encode_shard(dict.fromkeys(range(16_384 - 256, 16_384), LARGEST))
    size = sum(len(key) + len(text) for key, text in data.items())
    assert size < route_shards.SHARD_BYTES_MAX // 4
    zone = "z" * 63
    assert len(route_shards.shard_name(zone, 63)) <= 253


def test_a_shard_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit would be found out by the API server."""
    monkeypatch.setattr(route_shards, "SHARD_BYTES_MAX", 100)
    with pytest.raises(RouteShardError, match="is over 100"):
        route_shards.encode_shard({0: LARGEST})


def test_what_does_not_belong_together_is_refused() -> None:
    """A partition would silently have no leader, or two records."""
    record = routes.initial((0,), 1)
    one = route_shards.encode_shard({0: record})
    with pytest.raises(RouteShardError, match=r"partitions of shards \[0, 1\]"):
        route_shards.encode_shard({0: record, 256: record})
    with pytest.raises(RouteShardError, match="partition 0 is in two shards"):
        route_shards.decode_routes([one, one], 1)
    with pytest.raises(RouteShardError, match="partition 1 is none of the 1 from 0"):
        route_shards.decode_routes([route_shards.encode_shard({0: record, 1: record})], 1)
    with pytest.raises(RouteShardError, match="1 partitions have no record, 1 is the first"):
        route_shards.decode_routes([one], 2)
    with pytest.raises(RouteShardError, match="key 'x' is not a partition"):
        route_shards.decode_shard({"x": "{}"})
    with pytest.raises(RouteShardError, match="partition 7: not a route record"):
        route_shards.decode_shard({"7": "{}"})
    with pytest.raises(RouteShardError, match="16384 are the most"):
        route_shards.encode_routes([record] * 16_385)
    with pytest.raises(RouteShardError, match="below 0"):
        route_shards.shard_of(-1)
