"""Route records as JSON, and their place in ConfigMaps: 256 partitions in each shard.

The routes of thousands of partitions have no room in one Kubernetes object. Shard i of a zone
holds the ids [256 i, 256 (i + 1)), one key per partition ("17") with the record's JSON text; each
entry's `partition_epoch` is its own version. Version 1 records are still read (HS-01).

Ids tell of which generation a partition is (`wire.layouts`), so a shard is of one, too: generation
g has the shards from 64 g on, as many as its layout needs.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rezone.wire.codec.keyspace import PARTITIONS_MAX
from rezone.wire.errors import UNREADABLE
from rezone.wire.layouts import Layout
from rezone.wire.messages import LeaderAndIsr, PartitionId
from rezone.wire.typed import from_json

PARTITIONS_PER_SHARD = 256
SHARD_BYTES_MAX = 1 << 20  # Kubernetes refuses larger ConfigMaps
SHARDS_PER_GENERATION = PARTITIONS_MAX // PARTITIONS_PER_SHARD
RECORD_VERSION = 2


class RouteShardError(ValueError):
    """A stored record or shard that cannot be read, or would not fit; the message says which."""


def shard_of(partition: PartitionId) -> int:
    """Return the number of the shard that holds a partition. Raises RouteShardError."""
    if partition < 0:
        raise RouteShardError(f"partition {partition} is below 0")
    return partition // PARTITIONS_PER_SHARD


def first_shard(generation: int) -> int:
    """Return the number of the shard that has the first partitions of a generation."""
    return generation * SHARDS_PER_GENERATION


def generation_of_shard(shard: int) -> int:
    """Return the generation whose partitions a shard has."""
    return shard // SHARDS_PER_GENERATION


def shard_name(zone: str, shard: int) -> str:
    """Return the name of the ConfigMap of a shard."""
    return f"{zone}-routes-{shard}"


def encode_record(record: LeaderAndIsr) -> str:
    """Return the JSON text of a record; the version always stands in it."""
    fields = msgspec.to_builtins(record)
    return msgspec.json.encode({"version": RECORD_VERSION, **fields}).decode()


def decode_record(text: str) -> LeaderAndIsr:
    """Return the record of a JSON text, version 1 or 2 (HS-01). Raises RouteShardError.

    Records without `replicas` (the seed's form) get them from `isr`. A version above 2 is
    refused: writing such a record back would lose what this program does not know.
    """
    try:
        record = from_json(text, LeaderAndIsr)
    except UNREADABLE as error:
        raise RouteShardError(f"not a route record: {error}") from error
    if not 1 <= record.version <= RECORD_VERSION:
        raise RouteShardError(
            f"route record version {record.version} is not 1 to {RECORD_VERSION}: "
            "it was written by a newer operator"
        )
    return msgspec.structs.replace(
        record, version=RECORD_VERSION, replicas=record.replicas or record.isr
    )


def encode_shard(records: Mapping[PartitionId, LeaderAndIsr]) -> dict[str, str]:
    """Return one ConfigMap's data. Raises RouteShardError when it mixes shards or is too big."""
    shards = {shard_of(partition) for partition in records}
    if len(shards) > 1:
        raise RouteShardError(f"partitions of shards {sorted(shards)} in one shard")
    data = {str(partition): encode_record(records[partition]) for partition in sorted(records)}
    size_bytes = sum(len(key) + len(text) for key, text in data.items())
    if size_bytes > SHARD_BYTES_MAX:
        raise RouteShardError(f"a shard of {size_bytes} bytes is over {SHARD_BYTES_MAX}")
    return data


def decode_shard(data: Mapping[str, str]) -> dict[PartitionId, LeaderAndIsr]:
    """Return the records of one ConfigMap's data by partition. Raises RouteShardError."""
    records = {}
    for key, text in data.items():
        if not (key.isascii() and key.isdigit()):
            raise RouteShardError(f"key {key!r} is not a partition")
        try:
            records[int(key)] = decode_record(text)
        except RouteShardError as error:
            raise RouteShardError(f"partition {key}: {error}") from error
    return records


def encode_routes(
    records: Sequence[LeaderAndIsr], generation: int = 0
) -> dict[int, dict[str, str]]:
    """Return the data of the ConfigMaps of one layout by shard; its records come by index.

    Raises RouteShardError when there are more than 16,384 records, or a shard is over 1 MiB.
    """
    if len(records) > PARTITIONS_MAX:
        raise RouteShardError(f"{len(records)} records, {PARTITIONS_MAX} are the most")
    by_id = list(zip(Layout(generation, len(records)).ids, records, strict=True))
    starts = range(0, len(records), PARTITIONS_PER_SHARD)
    return {
        shard: encode_shard(dict(by_id[start : start + PARTITIONS_PER_SHARD]))
        for shard, start in enumerate(starts, start=first_shard(generation))
    }


def decode_routes(
    shards: Iterable[Mapping[str, str]], partitions: int, generation: int = 0
) -> tuple[LeaderAndIsr, ...]:
    """Return the records of one layout by index; its shards may come in any order.

    Raises RouteShardError when a partition is missing, beyond `partitions` or there twice.
    """
    found: dict[PartitionId, LeaderAndIsr] = {}
    for data in shards:
        records = decode_shard(data)
        twice = sorted(found.keys() & records.keys())
        if twice:
            raise RouteShardError(f"partition {twice[0]} is in two shards")
        found |= records
    ids = Layout(generation, partitions).ids
    beyond = [partition for partition in found if partition not in ids]
    if beyond:
        raise RouteShardError(f"partition {min(beyond)} is none of the {partitions} from {ids[0]}")
    missing = [partition for partition in ids if partition not in found]
    if missing:
        raise RouteShardError(
            f"{len(missing)} partitions have no record, {missing[0]} is the first"
        )
    return tuple(found[partition] for partition in ids)
