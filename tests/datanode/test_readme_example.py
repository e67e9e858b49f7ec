"""The README's Python example, run as it is printed on real data nodes."""

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

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str) -> str:
    """Return the README's first block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def table_of_the_readme() -> TableSchema:
    """Return the schema of the README's zone."""
    schema = yaml.safe_load(block("yaml"))["spec"]["schema"]
    return TableSchema(
        tuple(
            Column(each["name"], ColumnType(each["type"]), nullable=each.get("nullable", True))
            for each in schema["columns"]
        ),
        tuple(schema["primaryKey"]),
        tuple(Index(each["name"], tuple(each["columns"])) for each in schema["indexes"]),
    )


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asserts that the example reads, looks up and changes what it has written.

    Without it a renamed call stays in the first code that a new user copies.
    """
    config = ZoneConfig(zone="accounts", zone_uid="u", partitions=2, table=table_of_the_readme())
    with cluster(tmp_path, 3, config=config) as c:
        for partition in range(config.partitions):
            c.create(partition, tuple((partition + i) % 3 for i in range(3)))
        address = next(iter(c.peers.values()))
        monkeypatch.setenv("BOOTSTRAP", address)
        names: dict[str, Any] = {}
        exec(compile(block("python"), "README.md", "exec"), names)  # noqa: S102 - our own page
        assert sorted(names["rows"]["id"].to_pylist()) == [7, 8]
        assert names["page"].rows.num_rows == 1000
        with TableClient([address]) as table:
            assert table.read([{"id": 7}])["balance"].to_pylist() == [80.0]
