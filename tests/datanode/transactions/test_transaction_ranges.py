"""Scans and lookups in a transaction: its snapshot with its own writes on top, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from replica_cluster import FAST, Coordinator, cluster, keys_in

from rezone.client import TableClient, Transaction
from rezone.datanode.reading.scan import scan_batches
from rezone.datanode.service import server
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.errors import NotReadyError, TransactionEndedError
from rezone.wire.messages import ScanTicket, ZoneConfig

PARTITIONS = 2
TABLE = TableSchema(indexes=(Index("by_value", ("value",)),))
CONFIG = ZoneConfig(zone="t", zone_uid="u", partitions=PARTITIONS, table=TABLE)
KEYS = keys_in(0, PARTITIONS, 60)
MINE, OTHERS = KEYS[:45], KEYS[45:]
THERE = keys_in(1, PARTITIONS, 5)
BATCH_ROWS = 7


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Give two partitions of two replicas, led by node 0."""
    with cluster(tmp_path_factory.mktemp("ranges"), 2, settings=FAST, config=CONFIG) as made:
        for partition in range(PARTITIONS):
            made.create(partition, (0, 1))
        yield made


@pytest.fixture
def table(c: Coordinator, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableClient]:
    """Give a client of an empty zone, whose scans come in small batches."""

    def scan(partition: Any, ticket: ScanTicket, codec: Any) -> Iterator[Any]:
        return scan_batches(
            partition, msgspec.structs.replace(ticket, batch_rows=BATCH_ROWS), codec
        )

    monkeypatch.setattr(server, "scan_batches", scan)
    with TableClient(list(c.peers.values())) as client:
        client.delete([{"key": key} for key in client.scan()["key"].to_pylist()])
        yield client


def rows_of(rows: dict[bytes, bytes]) -> list[dict[str, Any]]:
    """Return rows as they are written."""
    return [{"key": key, "value": value} for key, value in rows.items()]


def scanned(tx: Transaction) -> dict[bytes, bytes]:
    """Return what a transaction scans; no row twice."""
    found = tx.scan().to_pylist()
    rows = {row["key"]: row["value"] for row in found}
    assert len(rows) == len(found)
    return rows


def looked_up(tx: Transaction, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, bytes]]:
    """Return what a transaction looks up, page by page, in its order."""
    found: list[tuple[bytes, bytes]] = []
    after: bytes | None = b""
    while after is not None:
        page = tx.lookup("by_value", (low,), (high,), limit=limit, after=after)
        assert page.rows.num_rows <= limit
        found += [(row["value"], row["key"]) for row in page.rows.to_pylist()]
        after = page.next
    return found


def value(rng: random.Random) -> bytes:
    """Return one of few values."""
    return b"v%d" % rng.randrange(6)


def test_a_transaction_sees_its_snapshot_and_its_own_writes_at_every_step(
    table: TableClient,
) -> None:
    """A sum over rows would miss what was just written, or count what others write meanwhile."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    model = {key: value(rng) for key in KEYS[20:55]}
    table.write(rows_of(model) + rows_of(dict.fromkeys(THERE, b"v1")))
    with table.transaction({"key": KEYS[0]}) as tx:
        for _ in range(10):
            changed = {key: value(rng) for key in rng.sample(MINE, 5)}
            dropped = rng.sample(MINE, 3)
            tx.write(rows_of(changed))
            tx.delete([{"key": key} for key in dropped])
            model = {k: v for k, v in (model | changed).items() if k not in dropped}
            table.write(rows_of({key: value(rng) for key in rng.sample(OTHERS, 3)}))
            assert scanned(tx) == model, f"seed {seed}"
            low, high = sorted([value(rng), value(rng)])
            found = looked_up(tx, low, high, rng.choice([2, 7, 1000]))
            expected = sorted((v, k) for k, v in model.items() if low <= v <= high)
            assert sorted(found) == expected, f"seed {seed}"
            assert [v for v, _ in found] == [v for v, _ in expected], f"seed {seed}"
    with table.transaction({"key": KEYS[0]}) as later:
        assert {k: v for k, v in scanned(later).items() if k in MINE} == {
            k: v for k, v in model.items() if k in MINE
        }


def test_what_it_has_scanned_is_right_at_the_next_leader(
    c: Coordinator, table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction would lose its own rows, or see those of others, when its leader moves."""
    old = c.records[0].leader
    table.write(rows_of(dict.fromkeys(KEYS[:30], b"v0")))
    tx = table.transaction({"key": KEYS[0]})
    tx.write(rows_of(dict.fromkeys(KEYS[25:35], b"mine")))
    moved: list[int] = []
    given = vars(server)["scan_batches"]

    def scan(partition: Any, ticket: ScanTicket, codec: Any) -> Iterator[Any]:
        for number, chunk in enumerate(given(partition, ticket, codec)):
            if number == 3 and not moved:
                moved.append(partition.node_id)
                c.move(0, 1 - old)
                table.write(rows_of(dict.fromkeys(KEYS[:25], b"theirs")))
                raise NotReadyError("broken for the test")
            yield chunk

    monkeypatch.setattr(server, "scan_batches", scan)
    expected = dict.fromkeys(KEYS[:30], b"v0") | dict.fromkeys(KEYS[25:35], b"mine")
    assert scanned(tx) == expected
    assert moved == [old]
    assert scanned(tx) == expected
    assert tx.commit() is not None


def test_one_that_is_over_scans_and_looks_up_nothing(table: TableClient) -> None:
    """Its intents may be gone, and others may have its rows: it would see a state of no moment."""
    tx = table.transaction({"key": KEYS[0]})
    tx.write(rows_of({KEYS[0]: b"mine"}))
    table.transaction_outcome(tx.partition, tx.id)  # which ends it
    for read in (tx.scan, lambda: tx.lookup("by_value")):
        with pytest.raises(TransactionEndedError):
            read()


def test_one_that_ends_while_it_scans_says_so(
    table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own rows would be missing from the end of what it scans, without an error."""
    table.write(rows_of(dict.fromkeys(KEYS, b"v0")))
    tx = table.transaction({"key": KEYS[0]})
    tx.write(rows_of({KEYS[0]: b"mine"}))
    given = vars(server)["scan_batches"]

    def scan(partition: Any, ticket: ScanTicket, codec: Any) -> Iterator[Any]:
        for number, chunk in enumerate(given(partition, ticket, codec)):
            if number == 2:
                table.transaction_outcome(tx.partition, tx.id)
            yield chunk

    monkeypatch.setattr(server, "scan_batches", scan)
    with pytest.raises(TransactionEndedError):
        tx.scan()


def test_rows_added_to_what_it_has_scanned_are_no_conflict(table: TableClient) -> None:
    """What is promised is a snapshot: who needs more must write what he reads."""
    one, two = (table.transaction({"key": KEYS[0]}) for _ in range(2))
    assert scanned(one) == scanned(two) == {}
    one.write(rows_of({KEYS[0]: b"one"}))
    two.write(rows_of({KEYS[1]: b"two"}))
    assert scanned(one) == {KEYS[0]: b"one"}
    assert one.commit() is not None
    assert scanned(two) == {KEYS[1]: b"two"}
    assert two.commit() is not None
    with table.transaction({"key": KEYS[0]}) as both:
        assert scanned(both) == {KEYS[0]: b"one", KEYS[1]: b"two"}
