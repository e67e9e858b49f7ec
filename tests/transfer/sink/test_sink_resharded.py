"""Micro-batches that are begun again over re-shardings, at real data nodes, without Spark."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from feed_kit import following
from replica_cluster import FAST, Coordinator, cluster
from resharding_kit import create_old, cut_over, overlaps_of, progress, reshard, seal

from rezone.client import TableClient
from rezone.client.feed.token import decode_token
from rezone.client.operations import sequenced
from rezone.wire.codec.schema import Column, ColumnType, RowLimits, TableSchema
from rezone.wire.layouts import generation_of, layout_of
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(
    zone="z", zone_uid="u", partitions=3, table=TABLE, limits=RowLimits(batch_rows_max=20)
)
CALM = msgspec.structs.replace(FAST, replica_lag_ms_max=20_000, reshard_poll_ms=100)
ROWS = 300
QUERY = "5d0f6d1e-6f0c-4b39-9a51-000000000001"


class DiedError(Exception):
    """The driver is gone."""


class Requests:
    """Acts before requests of a batch, and lets the driver die behind one, before its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acts: dict[int, Callable[[], object]] = {}
        self.dies_at = 0
        self.sent = 0
        send = sequenced.SequencedWrites._is_written

        def sending(writes: Any, *given: Any, **options: Any) -> bool:
            self.sent += 1
            if self.sent in self.acts:
                self.acts.pop(self.sent)()
            written = send(writes, *given, **options)
            if self.sent == self.dies_at:
                raise DiedError
            return written

        monkeypatch.setattr(sequenced.SequencedWrites, "_is_written", sending)
        monkeypatch.setattr(sequenced, "LANES_AT_ONCE", 1)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Coordinator]:
    """Yield two nodes with three partitions."""
    with cluster(tmp_path / "nodes", 2, config=CONFIG, settings=CALM) as c:
        create_old(c)
        yield c


def has_come_over(c: Coordinator, token: str) -> bool:
    """Return whether a feed follows the present layout: over two it is left behind, as it is told.

    Operators take longer for a re-sharding than this test for two.
    """
    positions = decode_token(CONFIG.zone_uid, token)
    return all(generation_of(each.given_by) == c.config.generation for each in positions)


def commit(c: Coordinator, staging: Path, batch: int, *, value: str | None = None) -> None:
    """Write a batch as the driver does when its tasks have ended."""
    from rezone.transfer.sink.staging import Staging  # noqa: PLC0415
    from rezone.transfer.sink.writers import StagedRows, StreamWriter  # noqa: PLC0415
    from rezone.transfer.source.options import SourceOptions  # noqa: PLC0415 - imports pyspark

    given = {"bootstrap": ",".join(c.peers.values()), "stagingDirectory": str(staging)}
    rows = [{"id": n, "value": value or f"batch {batch}"} for n in range(ROWS)]
    files = Staging(str(staging), f"{QUERY}/{batch}")
    staged = files.write(iter([pa.RecordBatch.from_pylist(rows)]))
    StreamWriter(SourceOptions.read(given)).commit([StagedRows(*staged, QUERY)], batch)


@pytest.mark.long
@pytest.mark.proves("SP-04")
@pytest.mark.parametrize("seed", [1])
def test_a_batch_whose_driver_dies_over_a_cut_over_is_written_once(
    nodes: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each row of a batch is one change, whatever driver writes it before or after a cut-over.

    Without what a request was sent as before, rows are written a second time, over what others have
    written since; numbered by arrival, the repeat is refused for good.
    """
    pytest.importorskip("pyspark.sql")
    rng, requests = random.Random(seed), Requests(monkeypatch)
    with TableClient(list(nodes.peers.values())) as client, following(client) as found:
        for batch, partitions in enumerate((2, 4, 3)):
            reshard(nodes, partitions)
            nodes.until_each(
                "backfilled", overlaps_of(nodes), lambda p: progress(nodes, p).backfilled
            )
            old = [*layout_of(nodes.config).ids]
            rng.shuffle(old)
            at = requests.sent + rng.randrange(2, 12)
            requests.acts = {
                at + 2 * n: functools.partial(seal, nodes, partition)
                for n, partition in enumerate(old[: rng.randrange(1, len(old) + 1)])
            }
            requests.dies_at = at + rng.randrange(1, 8)
            with pytest.raises(DiedError):
                commit(nodes, tmp_path / "staging", batch)
            there = client.scan().to_pylist()
            written = [row["id"] for row in there if row["value"] == f"batch {batch}"]
            theirs = rng.sample(written, 5)
            client.write([{"id": n, "value": f"theirs {batch}"} for n in theirs])
            cut_over(nodes)
            if rng.random() < 0.5:  # another one before the driver is back
                requests.acts.clear()
                nodes.until("the feed has come over", lambda: has_come_over(nodes, found.token))
                reshard(nodes, 5)
                nodes.until_each(
                    "backfilled", overlaps_of(nodes), lambda p: progress(nodes, p).backfilled
                )
                cut_over(nodes)
            requests.dies_at = requests.sent + rng.randrange(1, 15)
            with pytest.raises(DiedError):
                commit(nodes, tmp_path / "staging", batch)
            commit(nodes, tmp_path / "staging", batch)
            rows = {row["id"]: row["value"] for row in client.scan().to_pylist()}
            assert rows == {
                n: f"theirs {batch}" if n in theirs else f"batch {batch}" for n in range(ROWS)
            }
        expected = {(n, f"batch {b}"): 1 for n in range(ROWS) for b in range(3)}
        nodes.until("all changes are told", lambda: expected.keys() <= found.keys())
        told = {key: found[key] for key in expected}
    assert told == expected, f"seed {seed}"
