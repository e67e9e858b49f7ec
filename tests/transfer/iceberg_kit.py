"""A catalog of Iceberg tables in a file, named "lake", as users configure one."""

from pathlib import Path
from typing import Any

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
