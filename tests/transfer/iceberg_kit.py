"""A catalog of Iceberg tables in a file, named "lake", as users configure one."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


def lake(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure the catalog by the variables that pyiceberg reads."""
    directory.mkdir()
    prefix = "PYICEBERG_CATALOG__LAKE__"
    monkeypatch.setenv(f"{prefix}TYPE", "sql")
    monkeypatch.setenv(f"{prefix}URI", f"sqlite:///{directory}/catalog.db")
    monkeypatch.setenv(f"{prefix}WAREHOUSE", f"file://{directory}/warehouse")


def table_of(name: str) -> Any:
    """Return a table of a catalog."""
    from rezone.transfer.iceberg.tables import IcebergTable  # noqa: PLC0415 - an extra

    return IcebergTable(name).load()


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table by id."""
    found: list[dict[str, Any]] = table_of(name).scan().to_arrow().sort_by("id").to_pylist()
    return found


def delete_positions(name: str, location: str, positions: list[int]) -> None:
    """Commit a file of position deletes, as other engines write them; pyiceberg writes none."""
    from pyiceberg import manifest  # noqa: PLC0415 - an extra
    from pyiceberg.typedef import Record  # noqa: PLC0415 - an extra

    class Deletes(manifest.ManifestWriterV2):  # type: ignore[misc]
        def content(self) -> manifest.ManifestContent:
            return manifest.ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    def deletes(spec: Any) -> Any:
        path = location.removesuffix(".parquet") + f"-{producer.snapshot_id}-manifest.avro"
        output = table.io.new_output(path)
        return Deletes(spec, table.schema(), output, producer.snapshot_id, "gzip")

    table = table_of(name)
    of_file = pa.table({"file_path": [location] * len(positions), "pos": positions})
    path = Path(location.removeprefix("file://")).with_suffix(f".{len(table.snapshots())}.deletes")
    pq.write_table(of_file, path)
    with table.transaction() as transaction:
        producer = transaction.update_snapshot().fast_append()
        producer.new_manifest_writer = deletes
        with producer:
            producer.append_data_file(
                manifest.DataFile.from_args(
                    content=manifest.DataFileContent.POSITION_DELETES,
                    file_path=f"file://{path}",
                    file_format=manifest.FileFormat.PARQUET,
                    partition=Record(),
                    record_count=len(positions),
                    file_size_in_bytes=path.stat().st_size,
                    spec_id=0,
                )
            )
