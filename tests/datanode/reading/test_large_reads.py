"""Reads by key of more than one answer may have, at a real data node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from replica_cluster import FAST, cluster

from rezone.client import TableClient
from rezone.datanode.reading import read
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import LimitExceededError
from rezone.wire.messages import ZoneConfig

TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)


def test_keys_of_more_rows_than_fit_are_answered_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read by key gives all rows, and a data node never reads more at once than an answer has.

    A thousand keys of rows of a megabyte would take its memory, and make an answer that is over the
    limit of a frame, each time that the client asks again.
    """
    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=TABLE)
    rows: list[dict[str, Any]] = [{"id": n, "value": "x" * 1000} for n in range(500)]
    with (
        cluster(tmp_path, 1, config=config, settings=FAST) as nodes,
        TableClient([nodes.nodes[0].address]) as client,
    ):
        nodes.create(0, (0,))
        client.write(rows)
        monkeypatch.setattr(read, "ANSWER_BYTES_MAX", 100_000)
        reader = nodes.replica(0, 0).store.reader
        taken: list[int] = []
        newest = type(reader).newest

        def noting(self: Any, row_ids: list[bytes], as_of: int | None = None) -> Any:
            found = newest(self, row_ids, as_of)
            taken.append(sum(len(value) for value in found if value is not None))
            return found

        monkeypatch.setattr(type(reader), "newest", noting)
        keys = [{"id": row["id"]} for row in rows]
        assert client.read(keys).sort_by("id").to_pylist() == rows
        assert max(taken) < 100_000
        monkeypatch.setattr(read, "ANSWER_BYTES_MAX", 100)
        with pytest.raises(LimitExceededError, match="ask for fewer"):
            client.read(keys[:3])
