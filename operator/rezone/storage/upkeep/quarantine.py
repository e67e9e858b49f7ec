"""Opening what may be damaged: a replica that cannot be opened is quarantined, not deleted.

Its files stand beside it as `<partition>.damaged` until the partition has been copied again: they
may be the last copy there is. An empty replica takes its place, with the epochs that are known,
that needs a copy and therefore counts for nobody as in sync.
"""

import shutil
from pathlib import Path

import structlog

from rezone.storage.disk.partition_directory import quarantine_name
from rezone.storage.disk.syncing import sync_directory
from rezone.storage.state.marks import Marks
from rezone.storage.state.meta import MetaFile, PartitionMeta
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from rezone.wire.errors import CorruptionError
from rezone.wire.messages import Role

_log = structlog.get_logger(__name__)


def is_replica(directory: Path) -> bool:
    """Whether a replica was ever made there; a crash may leave the beginning of one."""
    return MetaFile.exists(directory) or Marks(directory).facts > 0


def open_store(directory: Path, config: StoreConfig) -> PartitionStore:
    """Open a partition's storage; what is damaged is quarantined, and an empty one made.

    OSError for what is no damage, such as a full disk.
    """
    try:
        return PartitionStore.open(directory, config)
    except CorruptionError as error:
        why = str(error)
    # Not before the error is gone: its frames hold iterators, and they the database's lock.
    _log.error("a replica is damaged", partition=config.partition, error=why)
    return _without_rows(directory, config, why)


def _without_rows(directory: Path, config: StoreConfig, why: str) -> PartitionStore:
    try:
        known = MetaFile(directory, PartitionMeta(partition=config.partition)).value
    except CorruptionError:
        known = PartitionMeta(partition=config.partition)
    quarantine = quarantine_name(directory)
    if quarantine.exists():
        # What is there was damaged before; this one is only what should have replaced it.
        shutil.rmtree(directory)
    else:
        directory.rename(quarantine)
    sync_directory(directory.parent)
    store = PartitionStore.open(directory, config)
    store.update_meta(
        zone_uid=known.zone_uid,
        coordinator_epoch=known.coordinator_epoch,
        leader_epoch=known.leader_epoch,
        partition_epoch=known.partition_epoch,
        revision=known.revision,
        leader_and_isr=known.leader_and_isr,
        lease_ms=known.lease_ms,
        role=Role.LEARNER,
        needs_snapshot=True,
        damage=why,
    )
    return store
