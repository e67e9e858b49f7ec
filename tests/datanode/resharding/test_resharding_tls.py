"""A zone is re-sharded while all of its nodes speak TLS, by itself and by a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from resharding_kit import (
    create_old,
    overlaps_of,
    progress,
    require_equal,
    reshard,
    resharded,
    seal,
)
from secure_cluster import of_zone, secure_cluster
from test_resharding_clients import TABLE, table_of

from rezone.client import TableClient
from rezone.transfer.copying.backfill import RangeBackfill
from rezone.transfer.copying.reserving import Reservations
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import ForbiddenError, TransactionEndedError
from rezone.wire.layouts import layout_of
from rezone.wire.transport.identity import Role

_ROWS = {b"row-%03d" % number: b"%d" % (number % 7) for number in range(300)}


@pytest.mark.proves("B-08")
def test_rows_index_and_transactions_go_over_with_certificates(tmp_path: Path) -> None:
    """A zone with TLS could not be re-sharded, or lookups would miss rows that were cut over.

    What a transaction had not committed must be seen nowhere.
    """
    with secure_cluster(tmp_path, 3, 2, table=TABLE) as c:
        create_old(c)
        tls = c.pki.source("client", of_zone(Role.WRITER))
        with TableClient(c.addresses(), tls=tls) as table:
            table.write(table_of(_ROWS))
            done = table.transaction({"key": b"row-000"})
            done.write(table_of({b"row-000": b"committed"}))
            done.commit()
            open_ = table.transaction({"key": b"row-001"})
            open_.write(table_of({b"row-001": b"intent"}))
            reshard(c, 3)
            c.until_each("pulled", overlaps_of(c), lambda overlap: resharded(c, overlap))
            table.write(table_of({b"row-002": b"followed"}))
            for partition in layout_of(c.config).ids:
                seal(c, partition)
            c.until_each("served", overlaps_of(c), lambda overlap: progress(c, overlap).sealed)
            with pytest.raises(TransactionEndedError):
                open_.commit()
            table.write(table_of({b"row-003": b"new"}))
            changed = {b"row-000": b"committed", b"row-002": b"followed", b"row-003": b"new"}
            expected = _ROWS | changed
            found = table.read([{"key": key} for key in expected])
            assert dict(zip(*found.to_pydict().values(), strict=True)) == expected
            for value in (b"1", b"committed", b"intent", b"followed", b"new"):
                page = table.lookup("by_value", (value,), (value,))
                keys = {key for key, own in expected.items() if own == value}
                assert set(page.rows["key"].to_pylist()) == keys


@pytest.mark.proves("SP-01", "TR-03")
def test_a_job_brings_rows_with_the_certificate_of_transfers_alone(tmp_path: Path) -> None:
    """Whoever may write rows, or read them, could put any into partitions that are to serve."""
    with secure_cluster(tmp_path, 2, 1, table=TABLE) as c:
        create_old(c)
        with TableClient(c.addresses(), tls=c.pki.source("client", of_zone(Role.WRITER))) as table:
            table.write(table_of(_ROWS))
        reshard(c, 2)
        c.watch()
        ranges = [BackfillRange(overlap.new, overlap.old) for overlap in overlaps_of(c)]
        as_writer = c.connect_as(of_zone(Role.WRITER))
        for overlap in ranges:
            with pytest.raises(ForbiddenError):
                RangeBackfill(overlap, c.peers, connect=as_writer, patience_seconds=0).run()
        connect = c.connect_as(of_zone(Role.TRANSFER))
        with Reservations(ranges, c.peers, connect=connect) as reservations:
            assert reservations.renew()
            receipts = [
                RangeBackfill(overlap, c.peers, connect=connect).run() for overlap in ranges
            ]
        assert not any(each.error for each in receipts)
        c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        assert require_equal(c, {}) == len(_ROWS)
