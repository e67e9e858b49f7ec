"""The replicas of one data node: found on its disk, opened, looked up, dropped.

Each has a directory of its own, named by its partition.

Concurrency: a lock guards the tables and is never held while a replica is opened or called; two
that want the same one opened wait for each other.
"""

import shutil
import threading
from pathlib import Path

import msgspec
import structlog

from rezone.datanode.node.memory import NodeMemory
from rezone.datanode.replica.host import Host
from rezone.datanode.replica.replica import Replica
from rezone.storage.engines.rocks_settings import RocksSettings
from rezone.storage.state.meta import MetaFile, PartitionMeta
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from rezone.storage.upkeep.quarantine import is_replica, open_store
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    NotReadyError,
    RezoneError,
    StaleEpochError,
    UnknownPartitionError,
)
from rezone.wire.messages import DiskTrouble, Fence, PartitionId, ZoneConfig

_log = structlog.get_logger(__name__)


class Replicas:
    """The replicas in `directory`; `config` is what all their stores have in common."""

    def __init__(
        self, host: Host[Replica], directory: Path, config: StoreConfig, memory: NodeMemory
    ) -> None:
        self._host = host
        self._directory = directory
        self._config = config
        self._memory = memory
        self._lock = threading.Lock()
        self._open: dict[PartitionId, Replica] = {}
        self._opening: dict[PartitionId, threading.Lock] = {}

    # --- what stands on the disk -----------------------------------------------------------------

    def _directories(self) -> list[Path]:
        found = sorted(self._directory.glob("[0-9]*"))
        return [directory for directory in found if directory.name.isdecimal()]

    def check(self, fence: Fence, config: ZoneConfig) -> None:
        """Check a call against replicas that were found without the node's facts.

        ConflictError when they are of another zone, StaleEpochError when they know a later epoch.
        """
        for directory in self._directories():
            try:
                meta = MetaFile(directory, PartitionMeta()).value
            except CorruptionError:
                continue  # quarantined when it is opened
            if meta.zone_uid not in {"", config.zone_uid}:
                raise ConflictError(
                    f"node {self._host.node_id} holds data of zone {meta.zone_uid}",
                    zone_uid=meta.zone_uid,
                )
            if fence.coordinator_epoch < meta.coordinator_epoch:
                raise StaleEpochError(
                    f"coordinator epoch {fence.coordinator_epoch} is behind "
                    f"{meta.coordinator_epoch}",
                    coordinator_epoch=meta.coordinator_epoch,
                )

    def open_found(self) -> None:
        """Open every replica of the disk; remove what a crash has left of one that never was."""
        for directory in self._directories():
            if is_replica(directory):
                try:
                    self._make(int(directory.name), learner=False)
                except OSError as error:
                    # The coordinator has no report of it, sends its record, and so asks again.
                    _log.error("a replica cannot be opened", path=directory.name, error=str(error))
            else:
                shutil.rmtree(directory)

    # --- open replicas ---------------------------------------------------------------------------

    def all(self) -> list[Replica]:
        """Return all open replicas."""
        with self._lock:
            return list(self._open.values())

    def find(self, partition: PartitionId) -> Replica:
        """Return a replica; UnknownPartitionError when the node has none."""
        with self._lock:
            found = self._open.get(partition)
        if found is None:
            raise UnknownPartitionError(
                f"node {self._host.node_id} has no replica of partition {partition}",
                partition=partition,
            )
        return found

    def open(self, partition: PartitionId, *, learner: bool) -> Replica:
        """Return the replica, opened and empty when it is new; a learner first needs a copy."""
        with self._opening_of(partition):
            with self._lock:
                found = self._open.get(partition)
            try:
                return found or self._make(partition, learner=learner)
            except OSError as error:
                raise NotReadyError(
                    f"the replica of partition {partition} cannot be opened: {error}"
                ) from error

    def reopen(self, replica: Replica) -> Replica | None:
        """Open a replica again that has failed, by what is durable; None when it was dropped.

        OSError or RezoneError when it cannot be; then it stays as it is, to be tried again.
        """
        number = replica.partition_id
        with self._opening_of(number):
            with self._lock:
                if self._open.get(number) is not replica or replica.retired:
                    return None
            durable_end = replica.abandon()
            floor = replica.write_clock.floor
            return self._make(number, learner=False, durable_end=durable_end, time_floor=floor)

    def _rocks_settings(self, partition: PartitionId) -> RocksSettings:
        with self._lock:
            before = self._open.get(partition)
        return msgspec.structs.replace(
            self._memory.rocks_settings(self._config.rocks),
            has_room=self._host.space.has_room,
            merging=before is None or before.failing.disk is not DiskTrouble.FULL,
        )

    def _opening_of(self, partition: PartitionId) -> threading.Lock:
        """Return what is held while a replica is opened or deleted: there is one directory."""
        with self._lock:
            return self._opening.setdefault(partition, threading.Lock())

    def _make(
        self,
        partition: PartitionId,
        *,
        learner: bool,
        durable_end: int | None = None,
        time_floor: int = 0,
    ) -> Replica:
        """Open a replica; `durable_end`: after a failure, up to where its log is to be trusted."""
        zone, settings = self._host.config, self._host.settings
        config = msgspec.structs.replace(
            self._config,
            partition=partition,
            engine=zone.engine,
            table=zone.table,
            sync_times=self._host.sync_times,
            rocks=self._rocks_settings(partition),
            transaction_seconds_max=settings.transaction_ms_max / 1000,
            open_intents=self._memory.open_intents,
            ended_transactions=self._memory.ended_transactions,
        )
        directory = self._directory / str(partition)
        new = not MetaFile.exists(directory)
        store = open_store(directory, config)
        try:
            if time_floor > store.meta.time_floor:
                store.update_meta(time_floor=time_floor)
            return self._made(partition, store, new=new, learner=learner, durable_end=durable_end)
        except (OSError, RezoneError, AssertionError):
            store.abandon()
            raise

    def _made(
        self,
        partition: PartitionId,
        store: PartitionStore,
        *,
        new: bool,
        learner: bool,
        durable_end: int | None,
    ) -> Replica:
        zone = self._host.config
        if new and not store.meta.damage:
            store.update_meta(needs_snapshot=learner)
        if store.meta.zone_uid != zone.zone_uid:
            store.update_meta(zone_uid=zone.zone_uid)
        if durable_end is not None:
            store.distrust(durable_end)
        opened = Replica(store, self._host)
        with self._lock:
            self._open[partition] = opened
        self._memory.share(self.all())
        self._host.touched(partition, at_once=True)
        return opened

    def drop(self, replica: Replica) -> None:
        """Stop a replica and delete its data; NotReadyError when that must be asked for again."""
        number = replica.partition_id
        with self._opening_of(number):
            with self._lock:
                if self._open.get(number) is not replica:
                    return  # another call has dropped it, and it may be open again by now
                del self._open[number]
            self._memory.share(self.all())
            replica.stop()
            self._host.restream(replica)
            try:
                replica.destroy()
            except OSError as error:
                with self._lock:
                    # It goes on being reported: so the coordinator hears that it is not gone.
                    self._open[number] = replica
                raise NotReadyError(
                    f"the replica of partition {number} cannot be deleted yet: {error}"
                ) from error
            finally:
                self._host.touched(number, at_once=True)
