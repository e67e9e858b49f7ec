"""The demo's proof: nothing lost, nothing doubled, every replica the same.

Rows: each row that a writer was promised is read back from its leader. Doubles: offsets count row
changes, so the offsets of all partitions must add up to the rows loaded plus the row changes
acknowledged (and at most those whose answer never came); not after a re-sharding, for the logs of
its partitions begin with what was there. Replicas: every replica digests its rows by key range as
of one time of its leader.
"""

import dataclasses
import time
from collections.abc import Mapping

from rezone.cli.demo.ledger import Book
from rezone.cli.demo.table import DemoTable
from rezone.client import TableClient
from rezone.wire import layouts
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    DigestReply,
    DigestRequest,
    LeaderAndIsr,
    NodeReport,
    PartitionId,
    ReportRequest,
    RoutesRequest,
    RouteTable,
)
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import TlsSource, tls_from_environment

KEYS_PER_READ = 2000
APPLY_SECONDS_MAX = 60.0
RANGES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """What was found; `problems` empty means that the promise was kept."""

    rows_total: int
    rows_expected: int
    rows_checked: int
    offsets_total: int
    offsets_expected: int
    offsets_unknown: int
    replicas_compared: int
    problems: tuple[str, ...]


def prove(
    bootstrap: list[str],
    table: DemoTable,
    book: Book,
    routes: Mapping[PartitionId, LeaderAndIsr],
    addresses: Mapping[int, str],
) -> Proof:
    """Compare the zone with the book and its replicas with each other."""
    problems = _check_rows(bootstrap, table, book)
    tls = tls_from_environment()
    clients = {node: NodeClient(address, tls) for node, address in addresses.items()}
    try:
        rows, compared, differences = _check_replicas(clients, routes)
        offsets = _offsets(clients, routes)
    finally:
        for client in clients.values():
            client.close()
    expected = table.rows + len(book.acknowledged)
    changes = table.rows + book.rows_acknowledged
    problems += differences
    if not expected <= rows <= table.rows + len(book.possible):
        problems.append(f"the zone has {rows} rows, {expected} were loaded and acknowledged")
    resharded = any(layouts.generation_of(partition) for partition in routes)
    if not resharded and not changes <= offsets <= changes + book.rows_unknown:
        problems.append(f"{offsets} row changes are logged, {changes} were acknowledged")
    return Proof(
        rows_total=rows,
        rows_expected=expected,
        rows_checked=len(book.acknowledged),
        offsets_total=offsets,
        offsets_expected=changes,
        offsets_unknown=book.rows_unknown,
        replicas_compared=compared,
        problems=tuple(problems),
    )


def known_routes(bootstrap: str) -> tuple[dict[PartitionId, LeaderAndIsr], dict[int, str]]:
    """Return the newest record of each partition that any data node knows, and all addresses.

    For who has no way to the API server. Raises RezoneError when a data node does not answer.
    """
    tls = tls_from_environment()
    newest: dict[int, LeaderAndIsr] = {}
    peers = _routes_of(bootstrap, tls).peers
    for address in peers.values():
        for one in _routes_of(address, tls).partitions:
            known = newest.get(one.partition)
            if known is None or _age(one.state) > _age(known):
                newest[one.partition] = one.state
    return newest, peers


def _routes_of(address: str, tls: TlsSource | None) -> RouteTable:
    client = NodeClient(address, tls)
    try:
        return client.call(RoutesRequest(), RouteTable)
    finally:
        client.close()


def _age(state: LeaderAndIsr) -> tuple[int, int]:
    return state.leader_epoch, state.partition_epoch


def _check_rows(bootstrap: list[str], table: DemoTable, book: Book) -> list[str]:
    problems = []
    keys = list(book.acknowledged)
    with TableClient(bootstrap) as client:
        for start in range(0, len(keys), KEYS_PER_READ):
            part = keys[start : start + KEYS_PER_READ]
            found = table.writes_of(client.read(table.key_batch(part)))
            for key in part:
                count = found.get(key, 0)
                if not book.acknowledged[key] <= count <= book.possible[key]:
                    problems.append(
                        f"row {key} is at write {count}, acknowledged were "
                        f"{book.acknowledged[key]}, sent {book.possible[key]}"
                    )
    return problems


def _check_replicas(
    clients: Mapping[int, NodeClient],
    routes: Mapping[PartitionId, LeaderAndIsr],
) -> tuple[int, int, list[str]]:
    """Return the rows of all partitions, how many copies were compared, and what differs."""
    rows = compared = 0
    problems = []
    for partition, record in routes.items():
        leader = _digest(clients[record.leader], DigestRequest(partition=partition, ranges=RANGES))
        rows += sum(leader.rows)
        for node in record.replicas:
            if node == record.leader:
                continue
            copy = _caught_up(clients[node], partition, leader)
            compared += 1
            if copy is None or copy.digests != leader.digests:
                problems.append(f"partition {partition} on data node {node} is not its leader's")
    return rows, compared, problems


def _caught_up(client: NodeClient, partition: int, leader: DigestReply) -> DigestReply | None:
    """Return the follower's digest once it has applied what the leader had; followers are lazy."""
    deadline = time.monotonic() + APPLY_SECONDS_MAX
    request = DigestRequest(partition=partition, as_of=leader.as_of, ranges=RANGES)
    while time.monotonic() < deadline:
        try:
            copy = _digest(client, request)
        except RezoneError as error:
            if not error.retryable:
                raise
        else:
            if copy.applied_offset >= leader.applied_offset:
                return copy
        time.sleep(0.1)
    return None


def _digest(client: NodeClient, request: DigestRequest) -> DigestReply:
    return client.call(request, DigestReply, timeout_seconds=60.0)


def _offsets(clients: Mapping[int, NodeClient], routes: Mapping[PartitionId, LeaderAndIsr]) -> int:
    ends: dict[tuple[int, int], int] = {}
    for node, client in clients.items():
        report = client.call(ReportRequest(), NodeReport)
        ends |= {(node, r.partition): r.log_end_offset for r in report.replicas}
    return sum(ends[record.leader, partition] for partition, record in routes.items())
