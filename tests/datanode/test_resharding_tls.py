"""A zone with an index and open transactions is re-sharded while all of its nodes speak TLS."""

from __future__ import annotations

from pathlib import Path

import pytest
from resharding_kit import create_old, parts_of, progress, reshard, resharded, seal
from secure_cluster import of_zone, secure_cluster
from test_resharding_clients import TABLE, table_of

from rezone.client import TableClient
from rezone.wire.errors import TransactionEndedError
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
            c.until_each("pulled", parts_of(c), lambda part: resharded(c, part))
            table.write(table_of({b"row-002": b"followed"}))
            for partition in layout_of(c.config).ids:
                seal(c, partition)
            c.until_each("served", parts_of(c), lambda part: progress(c, part).sealed)
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
