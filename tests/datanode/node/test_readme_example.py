"""The Python example of the page on a first zone, run as it is printed on real data nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from replica_cluster import cluster

from rezone.client import TableClient
from rezone.wire.codec.schema import Column, ColumnType, Index, TableSchema
from rezone.wire.messages import ZoneConfig

PAGE = (Path(__file__).parents[3] / "docs" / "start" / "first-zone.md").read_text()


def block(language: str) -> str:
    """Return the page's first block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def table_of_the_page() -> TableSchema:
    """Return the schema of the page's zone."""
    schema = yaml.safe_load(block("yaml"))["spec"]["schema"]
    return TableSchema(
        tuple(
            Column(each["name"], ColumnType(each["type"]), nullable=each.get("nullable", True))
            for each in schema["columns"]
        ),
        tuple(schema["primaryKey"]),
        tuple(Index(each["name"], tuple(each["columns"])) for each in schema["indexes"]),
    )


def test_the_example_of_a_first_zone_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asserts that the example reads, looks up and changes what it has written.

    Without it a renamed call stays in the first code that a new user copies.
    """
    config = ZoneConfig(zone="accounts", zone_uid="u", partitions=2, table=table_of_the_page())
    with cluster(tmp_path, 3, config=config) as c:
        for partition in range(config.partitions):
            c.create(partition, tuple((partition + i) % 3 for i in range(3)))
        address = next(iter(c.peers.values()))
        monkeypatch.setenv("BOOTSTRAP", address)
        names: dict[str, Any] = {}
        exec(compile(block("python"), "first-zone.md", "exec"), names)  # noqa: S102 - our own page
        assert sorted(names["rows"]["id"].to_pylist()) == [7, 8]
        assert names["page"].rows.num_rows == 1000
        with TableClient([address]) as table:
            assert table.read([{"id": 7}])["balance"].to_pylist() == [80.0]
