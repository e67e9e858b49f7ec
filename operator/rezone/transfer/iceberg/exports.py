"""An export of a zone as a snapshot of an Iceberg table.

Each export becomes one snapshot, which has the rows as of the export's time and none of earlier
exports. The table's properties, and the snapshot's summary, say which zone and which time.
"""

from typing import Any

from rezone.transfer.bulk.directory import Directory
from rezone.transfer.bulk.exported import ExportManifest
from rezone.transfer.iceberg.tables import IcebergTable, data_files
from rezone.wire.codec.rows import arrow_schema_of

ZONE, ZONE_UID, AS_OF = "rezone.zone", "rezone.zone-uid", "rezone.as-of-micros"
ROWS, DIGEST = "rezone.rows", "rezone.digest"


def check_table(name: str, zone_uid: str) -> None:
    """Return when a table takes exports of a zone. Raises ValueError."""
    if (table := IcebergTable(name).load()) is not None:
        _check_owner(name, table, zone_uid)


def publish(name: str, directory: Directory, manifest: ExportManifest) -> int:
    """Make an export that is whole the table's content; return the snapshot's id.

    Nothing changes when it is that already. Raises ValueError when the table is another's, or has
    a later export.
    """
    target = IcebergTable(name)
    schema = arrow_schema_of(manifest.table)
    said = {
        ZONE: manifest.zone,
        ZONE_UID: manifest.zone_uid,
        AS_OF: str(manifest.as_of),
        ROWS: str(manifest.rows),
        DIGEST: manifest.digest,
    }

    def load() -> Any:
        return target.load_or_create(schema, manifest.table.primary_key)

    def is_made(table: Any) -> bool:
        _check_owner(name, table, manifest.zone_uid)
        last = int(table.properties.get(AS_OF, 0))
        if last > manifest.as_of:
            raise ValueError(f"{name} has the zone as of {last}, later than {manifest.as_of}")
        return last == manifest.as_of

    def stage(transaction: Any, table: Any) -> None:
        before = [task.file for task in table.scan().plan_files()]
        paths = [_location(directory, part.name) for part in manifest.parts]
        with transaction.update_snapshot(snapshot_properties=said).overwrite() as snapshot:
            for file in before:
                snapshot.delete_data_file(file)
            for file in data_files(transaction, table.io, paths):
                snapshot.append_data_file(file)
        transaction.set_properties(said)

    made = target.commit_once(load, is_made, stage)
    return int(made.current_snapshot().snapshot_id)


def _check_owner(name: str, table: Any, zone_uid: str) -> None:
    owner = table.properties.get(ZONE_UID)
    if owner is None and table.current_snapshot() is not None:
        raise ValueError(f"{name} has rows that are of no export: name another table")
    if owner not in (None, zone_uid):
        raise ValueError(f"{name} has exports of another zone, {table.properties.get(ZONE)!r}")


def _location(directory: Directory, name: str) -> str:
    """Return a file as readers of the table find it: a URI, without what it says of the store."""
    place = directory.uri.partition("?")[0].rstrip("/")
    return f"{place}/{name}" if "://" in place else f"file://{place}/{name}"
