"""The route table of one zone, sharded over ConfigMaps that the zone owns.

ConfigMap `<zone>-routes-<n>` holds 256 partitions, one JSON text each under the partition's
id. A change is one PUT per shard guarded by its resourceVersion, and applies a record only if
its partition_epoch is the expected one, so it cannot overwrite what somebody else decided. A
record never goes back: neither its epochs nor its coordinator's.

A layout's first shard is created last: with it the layout has its records as a whole, without it
not at all. Later a hole is damage and reported, never filled in: new records would begin with old
epochs. Records that were learned from data nodes begin with later epochs: their shards are
annotated as learned until a record of theirs changes, which tells an unfinished creation from a
table in use that has lost its first shard. While the zone is re-sharded it has two layouts. One
that is over is deleted the same way: its first shard is annotated as retired, by which all of its
records are gone at once, and deleted last. No generation is used twice, so a deletion that comes
late finds nothing of another's.

Concurrency: one store per zone and leading process; its calls may overlap. The shards last read
are kept only as the base of the next guarded PUT: a stale base costs a re-read, no more.
"""

from collections.abc import Iterable, Mapping, Sequence

from rezone.domain.model.world import RouteChange
from rezone.domain.routing.route_checks import regressions
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.route_shards import (
    RouteShardError,
    decode_record,
    decode_routes,
    decode_shard,
    encode_record,
    encode_routes,
    first_shard,
    generation_of_shard,
    shard_name,
    shard_of,
)
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ConflictWriteError,
    ExistsError,
    UnreadableError,
)
from rezone.kube.api.kinds import ConfigMap, Manifest
from rezone.kube.api.names import (
    COMPONENT_LABEL,
    ROUTES,
    ZONE_LABEL,
    is_owned,
    labels_of,
    owner_reference,
    require_owned,
)
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr, PartitionId

# Each lost attempt is another writer's success, and there should be no other writer.
CHANGE_ATTEMPTS_MAX = 10
SHARD_LABEL = "rezone.dev/routes-shard"
PARTITIONS_ANNOTATION = "rezone.dev/partitions"
"""On each shard, how many partitions its layout has."""
RETIRED_ANNOTATION = "rezone.dev/retired"
"""On the first shard of a layout that is being deleted."""
LEARNED_ANNOTATION = "rezone.dev/learned"
"""On a shard whose records were learned from data nodes and have not changed since."""

Shards = Mapping[int, Manifest]
"""ConfigMaps by the numbers of their shards."""


class DamagedRoutesError(UnreadableError):
    """Raised when a shard or a record of an existing table is missing or does not parse."""


class RouteStore:
    """Reads and changes the route table of `zone`."""

    def __init__(self, kube: Kube, zone: DistributionZone) -> None:
        self._kube = kube
        self._zone = zone
        self._bases: dict[int, Manifest] = {}
        self.retired: frozenset[int] = frozenset()
        """Generations whose deletion was begun by somebody, as of the last `load`."""

    async def load(self) -> RouteRecords:
        """Return the records, read from the API server now (ZR-14).

        Empty when the table was never created, or not to its end. Raises DamagedRoutesError when
        a part of it is missing or does not parse. ConfigMaps of another owner are not ours to
        read; `create`, `delete` and `change` refuse them.
        """
        table = RouteRecords()
        for generation, shards in sorted((await self._shards()).items()):
            records = self._records(generation, shards)
            if not records:
                continue
            try:
                table = table.with_next(records, generation)
            except ValueError as error:
                raise self._damaged(str(error)) from error
        return table

    async def create(self, records: Sequence[LeaderAndIsr], generation: int = 0) -> None:
        """Create the records of a layout; what an unfinished creation left is overwritten.

        A layout that has its records is left as it is. Raises ForeignObjectError when a name is
        held by another owner, DamagedRoutesError when shards of a used layout are there without the
        first, ValueError when it exists with another number of partitions, or cannot follow what
        exists.
        """
        table = await self.load()
        present = table.of(generation)
        if present:
            if len(present) != len(records):
                raise ValueError(f"the table has {len(present)} partitions, not {len(records)}")
            return
        table.with_next(records, generation)  # says whether that can be
        wanted = encode_routes(records, generation)
        kept = {*self.retired, *(layout.generation for layout in table.layouts)}
        for number in self._bases.keys() - wanted.keys():
            if generation_of_shard(number) not in kept:
                # Of an unfinished creation that was given up.
                await self._delete_shard(number)
        annotations = {PARTITIONS_ANNOTATION: str(len(records))}
        if any(each.partition_epoch > FIRST_PARTITION_EPOCH for each in records):
            annotations[LEARNED_ANNOTATION] = "true"
        for number, data in sorted(wanted.items(), reverse=True):
            await self._create_shard(number, data, annotations)

    async def delete(self, generation: int) -> None:
        """Delete the records of a layout, also those of an unfinished creation or deletion.

        Nothing of it is fine. Raises ConflictWriteError when a record of its first shard changes
        meanwhile, ValueError for the zone's only layout.
        """
        table = await self.load()
        if [layout.generation for layout in table.layouts] == [generation]:
            raise ValueError(f"the zone has no other layout than generation {generation}")
        first = first_shard(generation)
        base = self._bases.get(first)
        if base is not None and not _is_retired(base):
            annotations = {**_annotations(base), RETIRED_ANNOTATION: "true"}
            body = {**base, "metadata": {**base["metadata"], "annotations": annotations}}
            await self._kube.replace(ConfigMap, body)
        numbers = [n for n in self._bases if generation_of_shard(n) == generation]
        for number in sorted(numbers, reverse=True):
            await self._delete_shard(number)

    async def change(self, changes: Sequence[RouteChange]) -> frozenset[PartitionId]:
        """Apply the changes whose expected epoch is the stored one; return their partitions.

        A change that is stored already, to the field, counts as applied, so a repeat after an
        unknown outcome answers as the first call would have. Those not returned were left alone.
        Shards are written one after the other: an error leaves earlier shards changed.

        Raises ConflictWriteError when a shard changes under every attempt, MissingError when a
        shard is gone, UnknownOutcomeError when an answer is missing, ValueError when a change
        does not raise the epoch by one (a bug of the caller).
        """
        by_shard: dict[int, dict[PartitionId, RouteChange]] = {}
        for each in changes:
            _check(each)
            shard = by_shard.setdefault(shard_of(each.partition), {})
            if each.partition in shard:
                raise ValueError(f"two changes of partition {each.partition} in one call")
            shard[each.partition] = each
        applied: set[PartitionId] = set()
        for number, wanted in sorted(by_shard.items()):
            applied |= await self._change_shard(number, wanted)
        return frozenset(applied)

    async def is_gone(self) -> bool:
        """Return whether none of the table's ConfigMaps is there: somebody has deleted them all.

        Only their names are read. Where some are left, what is remembered serves the zone better
        than what could be read of it.
        """
        zone = self._zone.metadata
        return not await self._kube.names(ConfigMap, zone.namespace, labels=self._labels)

    @property
    def _labels(self) -> Mapping[str, str]:
        return {ZONE_LABEL: self._zone.metadata.name, COMPONENT_LABEL: ROUTES}

    async def _change_shard(
        self,
        number: int,
        wanted: Mapping[PartitionId, RouteChange],
    ) -> set[PartitionId]:
        base = self._bases.pop(number, None)
        fresh = base is None
        for _ in range(CHANGE_ATTEMPTS_MAX):
            if base is None:
                base = await self._read_shard(number)
                fresh = True
            done, data = _apply(base, wanted)
            # What an old base refuses may fit what is stored now.
            if len(done) < len(wanted) and not fresh:
                base = None
                continue
            if not data:
                self._bases[number] = base
                return done
            try:
                metadata = {**base["metadata"], "annotations": _annotations(base)}
                metadata["annotations"].pop(LEARNED_ANNOTATION, None)
                body = {**base, "metadata": metadata, "data": {**base["data"], **data}}
                self._bases[number] = await self._kube.replace(ConfigMap, body)
            except ConflictWriteError:
                base = None
                continue
            return done
        raise ConflictWriteError(f"shard {number} changed under {CHANGE_ATTEMPTS_MAX} attempts")

    async def _shards(self) -> dict[int, dict[int, Manifest]]:
        """Return the zone's shards, read now, by generation and number."""
        zone = self._zone.metadata
        found = await self._kube.list(ConfigMap, zone.namespace, labels=self._labels)
        self._bases = {_number_of(each): each for each in found if is_owned(each, self._zone)}
        shards: dict[int, dict[int, Manifest]] = {}
        for number, each in self._bases.items():
            shards.setdefault(generation_of_shard(number), {})[number] = each
        self.retired = frozenset(
            generation
            for generation, those in shards.items()
            if _is_retired(those.get(first_shard(generation)))
        )
        return shards

    def _records(self, generation: int, shards: Shards) -> tuple[LeaderAndIsr, ...]:
        """Return the records of one layout by index, none when it has not got them or lost them."""
        first = shards.get(first_shard(generation))
        if first is None:
            self._refuse_used(shards.values())
        if first is None or generation in self.retired:
            return ()
        data = [each.get("data") or {} for each in shards.values()]
        try:
            return decode_routes(data, _partitions_of(first), generation)
        except RouteShardError as error:
            raise self._damaged(str(error)) from error

    async def _read_shard(self, number: int) -> Manifest:
        zone = self._zone.metadata
        found = await self._kube.get(ConfigMap, zone.namespace, shard_name(zone.name, number))
        return require_owned(found, self._zone)

    async def _delete_shard(self, number: int) -> None:
        zone = self._zone.metadata
        await self._kube.delete(ConfigMap, zone.namespace, shard_name(zone.name, number))
        self._bases.pop(number, None)

    async def _create_shard(
        self, number: int, data: Mapping[str, str], annotations: Mapping[str, str]
    ) -> None:
        zone = self._zone.metadata
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": shard_name(zone.name, number),
                "namespace": zone.namespace,
                "labels": {**labels_of(zone.name, ROUTES), SHARD_LABEL: str(number)},
                "annotations": dict(annotations),
                "ownerReferences": [owner_reference(self._zone)],
            },
            "data": dict(data),
        }
        try:
            self._bases[number] = await self._kube.create(ConfigMap, body)
        except ExistsError:
            found = await self._read_shard(number)
            self._refuse_used([found])
            version = found["metadata"]["resourceVersion"]
            body["metadata"]["resourceVersion"] = version
            self._bases[number] = await self._kube.replace(ConfigMap, body)

    def _refuse_used(self, shards: Iterable[Manifest]) -> None:
        """Raise DamagedRoutesError if a record has changed since its creation.

        Then somebody deleted the first shard of a table in use; to begin again would bring back
        epochs that were used, and in-sync sets that are not true.
        """
        for each in shards:
            try:
                records = decode_shard(each.get("data") or {})
            except RouteShardError as error:
                raise self._damaged(f"{_where(each)}: {error}") from error
            if LEARNED_ANNOTATION in _annotations(each):
                continue
            if any(record.partition_epoch > FIRST_PARTITION_EPOCH for record in records.values()):
                raise self._damaged("its first shard is missing")

    def _damaged(self, what: str) -> DamagedRoutesError:
        zone = self._zone.metadata
        return DamagedRoutesError(
            f"the route table of zone {zone.namespace}/{zone.name} is damaged: {what}; restore "
            "its ConfigMaps from a backup",
        )


async def highest_coordinator_epoch(kube: Kube, namespace: str | None = None) -> int:
    """Return the highest coordinator epoch in any route table, 0 without any.

    For the case that the Lease was deleted: its count must not begin again. Unreadable records
    are an error here, too: a guess could hand out a used epoch.
    """
    found = await kube.list(ConfigMap, namespace, labels={COMPONENT_LABEL: ROUTES})
    highest = 0
    for each in found:
        try:
            records = decode_shard(each.get("data") or {})
        except RouteShardError as error:
            raise DamagedRoutesError(f"{_where(each)}: {error}") from error
        highest = max([highest, *(record.coordinator_epoch for record in records.values())])
    return highest


def _apply(
    base: Manifest,
    wanted: Mapping[PartitionId, RouteChange],
) -> tuple[set[PartitionId], dict[str, str]]:
    """Return the partitions that are as wanted afterwards, and the records to be written."""
    done: set[PartitionId] = set()
    data: dict[str, str] = {}
    texts = base.get("data") or {}
    for partition, change in wanted.items():
        text = texts.get(str(partition))
        if text is None:
            continue
        try:
            stored = decode_record(text)
        except RouteShardError as error:
            raise DamagedRoutesError(f"{_where(base)}, partition {partition}: {error}") from error
        if stored == change.state:
            done.add(partition)
        # A coordinator that was replaced must not have its way: no epoch may fall.
        elif stored.partition_epoch == change.expected_epoch and not regressions(
            stored,
            change.state,
        ):
            done.add(partition)
            data[str(partition)] = encode_record(change.state)
    return done, data


def _check(change: RouteChange) -> None:
    # A record that begins a partition again follows any other; `regressions` guards its epoch.
    later = change.learned and change.state.partition_epoch > change.expected_epoch
    if not later and change.state.partition_epoch not in {
        change.expected_epoch + 1,
        FIRST_PARTITION_EPOCH,
    }:
        raise ValueError(
            f"partition {change.partition}: epoch {change.state.partition_epoch} does not follow "
            f"{change.expected_epoch}",
        )


def _partitions_of(shard: Manifest) -> int:
    text = _annotations(shard).get(PARTITIONS_ANNOTATION, "")
    if not text.isdecimal():
        raise DamagedRoutesError(f"{_where(shard)} has lost its annotation {PARTITIONS_ANNOTATION}")
    return int(text)


def _number_of(shard: Manifest) -> int:
    label = (shard["metadata"].get("labels") or {}).get(SHARD_LABEL, "")
    if not label.isdecimal():
        raise DamagedRoutesError(f"{_where(shard)} has lost its label {SHARD_LABEL}")
    return int(label)


def _is_retired(shard: Manifest | None) -> bool:
    return shard is not None and RETIRED_ANNOTATION in _annotations(shard)


def _annotations(shard: Manifest) -> dict[str, str]:
    return {**(shard["metadata"].get("annotations") or {})}


def _where(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"ConfigMap {metadata.get('namespace')}/{metadata['name']}"
