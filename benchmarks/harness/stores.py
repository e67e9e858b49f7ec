"""Stores of single rows for small operations: Rezone, etcd, Redis and PostgreSQL, all alike.

Each runs its servers on loopback, in a directory of its own. A row is a number and a text. Clients
are threads of the calling process; those of the peers have a connection each, with as little code
around it as may be.

- Rezone: three data nodes, each write on three disks. All clients share one `TableClient`, or each
  has its own (`apart`), as pods have. Reads are linearizable.
- etcd: three members that sync their logs, each client at the JSON gateway of one of them, which
  costs its members more than gRPC. Reads are linearizable.
- Redis: a master with two replicas, `appendfsync always` at all, each write with WAIT for one or
  both of them: in their memory then, and on their disks soon after. Reads are the master's.
- PostgreSQL: one synchronous standby; a write is on both disks. Reads are the primary's.
"""

import base64
import contextlib
import itertools
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from harness.closed_loop import cpu_of_tree
from harness.leaders import NotHereError, etcd
from harness.peers import POSTGRES, Postgres, pause, redis_program, redis_server
from harness.zone import SCHEMA, Zone, write_all
from rezone.client import ClientSettings, TableClient
from rezone.client.aio import AsyncTableClient

ROW_OVERHEAD_BYTES = 30
"""What a row has beside its text, about: its number, and two more columns in Rezone."""

_KEY_SCHEMA = pa.schema([SCHEMA.field("id")])
_READ_BYTES = 1 << 16
_LOAD_ROWS = 1_000
_OPENING_CALLS = 8
_PAUSE_SECONDS = 0.05
_REDIS_SERVERS = 3
_POSTGRES_PROTOCOL = 3 << 16
_POSTGRES_CONNECTIONS = 400
_IN_SYNC = "select count(*) from pg_stat_replication where sync_state = 'sync'"
_SECONDS_MAX = 60.0
"""For an answer: a peer that breaks must not hold up the rest."""


class StoreClient(Protocol):
    """One client; one thread's."""

    def put(self, number: int, text: str) -> object:
        """Write a row; return when it is acknowledged."""

    def get(self, number: int) -> object:
        """Read a row."""


class Store(Protocol):
    """A running system."""

    name: str

    def clients(self, count: int) -> contextlib.AbstractContextManager[Sequence[StoreClient]]:
        """Connect so many clients."""

    def cpu(self) -> float:
        """Return the processor time that all its processes have used, in seconds."""

    def load(self, numbers: range, text: str) -> None:
        """Write these rows, as fast as may be."""


# --- Rezone -------------------------------------------------------------------------------------


def rows_of(numbers: Sequence[int], text: str) -> pa.RecordBatch:
    """Return rows with these numbers."""
    count = len(numbers)
    columns = [numbers, [f"row-{n}" for n in numbers], numbers, [text] * count]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def key_of(number: int) -> pa.RecordBatch:
    """Return one row's key."""
    return pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], schema=_KEY_SCHEMA)


class _RezoneClient:
    def __init__(self, client: TableClient) -> None:
        self._client = client

    def put(self, number: int, text: str) -> object:
        return self._client.write(rows_of([number], text))

    def get(self, number: int) -> object:
        return self._client.read(key_of(number))


class RezoneStore:
    """A zone; `apart`: each client has a `TableClient` of its own."""

    def __init__(
        self, zone: Zone, settings: ClientSettings | None = None, *, apart: bool = False
    ) -> None:
        self.name = "Rezone, apart" if apart else "Rezone"
        self._zone = zone
        self._settings = settings
        self._apart = apart

    @contextlib.contextmanager
    def clients(self, count: int) -> Iterator[Sequence[StoreClient]]:
        """See Store."""
        addresses = [node.address for node in self._zone.coordinator.nodes.values()]
        with contextlib.ExitStack() as open_ones:
            made = [
                _RezoneClient(
                    open_ones.enter_context(TableClient(addresses, settings=self._settings))
                )
                for _ in range(count if self._apart else 1)
            ]
            for one in made:
                for number in range(_OPENING_CALLS):
                    one.get(number)  # its connections
            yield made if self._apart else made * count

    @contextlib.asynccontextmanager
    async def in_loop(self) -> AsyncIterator[AsyncTableClient]:
        """Yield the client for all coroutines of the running event loop."""
        addresses = [node.address for node in self._zone.coordinator.nodes.values()]
        async with AsyncTableClient(addresses, settings=self._settings) as client:
            for number in range(_OPENING_CALLS):
                await client.get(number)
            yield client

    def cpu(self) -> float:
        """See Store."""
        return sum(self._zone.cpu_seconds().values())

    def load(self, numbers: range, text: str) -> None:
        """See Store."""
        with self._zone.client() as client:
            starts = range(0, len(numbers), _LOAD_ROWS)
            write_all(client, [rows_of(numbers[at : at + _LOAD_ROWS], text) for at in starts])


# --- peers --------------------------------------------------------------------------------------


class _Connection:
    """A socket that is read to a given length or mark."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left = b""

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def exactly(self, count: int) -> bytes:
        while len(self._left) < count:
            self._more()
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def until(self, mark: bytes) -> bytes:
        while mark not in self._left:
            self._more()
        taken, _, self._left = self._left.partition(mark)
        return taken

    def _more(self) -> None:
        got = self._socket.recv(_READ_BYTES)
        if not got:
            raise ConnectionError("the peer has closed the connection")
        self._left += got

    def close(self) -> None:
        self._socket.close()


class _Connected:
    """What the peers' clients and stores have in common."""

    ports: Sequence[int] = ()

    def client(self, port: int) -> Any:
        raise NotImplementedError

    @contextlib.contextmanager
    def clients(self, count: int) -> Iterator[Sequence[StoreClient]]:
        """See Store."""
        with contextlib.ExitStack() as open_ones:
            ports = itertools.islice(itertools.cycle(self.ports), count)
            yield [open_ones.enter_context(contextlib.closing(self.client(p))) for p in ports]

    def load(self, numbers: range, text: str) -> None:
        """See Store."""
        with self.clients(1) as (one,):
            for number in numbers:
                one.put(number, text)


class _EtcdClient:
    """A connection to one member's JSON gateway."""

    def __init__(self, port: int) -> None:
        self._connection = _Connection(port)

    def _call(self, path: str, request: dict[str, str]) -> None:
        body = json.dumps(request).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n\r\n"
        self._connection.send(head.encode() + body)
        answer = self._connection.until(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"etcd answers {answer[:200]!r}")
        length = answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        self._connection.exactly(int(length))

    def put(self, number: int, text: str) -> None:
        value = base64.b64encode(f"row-{number:012}{number:012}{text}".encode()).decode()
        self._call("/v3/kv/put", {"key": _etcd_key(number), "value": value})

    def get(self, number: int) -> None:
        self._call("/v3/kv/range", {"key": _etcd_key(number)})

    def close(self) -> None:
        self._connection.close()


def _etcd_key(number: int) -> str:
    return base64.b64encode(number.to_bytes(8, "big")).decode()


class EtcdStore(_Connected):
    """See the module."""

    name = "etcd"

    def __init__(self, ports: Sequence[int], pids: Sequence[int]) -> None:
        self.ports = ports
        self._pids = pids

    def client(self, port: int) -> _EtcdClient:
        """Connect to one member."""
        return _EtcdClient(port)

    def cpu(self) -> float:
        """See Store."""
        return sum(map(cpu_of_tree, self._pids))


@contextlib.contextmanager
def etcd_store(directory: Path) -> Iterator[EtcdStore]:
    """Run three members; NotHereError where etcd cannot be had."""
    with etcd(directory) as running:
        yield EtcdStore(running.ports, running.pids)


class _RedisClient:
    """A connection to the master; a write waits for so many replicas."""

    def __init__(self, port: int, replicas: int) -> None:
        self._connection = _Connection(port)
        self._replicas = replicas

    def call(self, *words: bytes) -> bytes:
        """Return the answer to one command: its first line, or all of a text."""
        self._connection.send(_redis_command(*words))
        return self._answer()

    def _answer(self) -> bytes:
        line = self._connection.until(b"\r\n")
        if line.startswith(b"-"):
            raise ConnectionError(f"Redis answers {line[:200]!r}")
        if line.startswith(b"$") and line != b"$-1":
            return self._connection.exactly(int(line[1:]) + 2)
        return line

    def put(self, number: int, text: str) -> None:
        wait = _redis_command(b"WAIT", b"%d" % self._replicas, b"%d" % (_SECONDS_MAX * 1000))
        self._connection.send(_redis_command(b"SET", b"%016d" % number, text.encode()) + wait)
        self._answer()
        if int(self._answer()[1:]) < self._replicas:
            raise ConnectionError("Redis: a write is not at enough replicas")

    def get(self, number: int) -> None:
        self.call(b"GET", b"%016d" % number)

    def close(self) -> None:
        self._connection.close()


def _redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class RedisStore(_Connected):
    """See the module; `ports`: the master's alone."""

    def __init__(self, port: int, pids: Sequence[int], replicas: int) -> None:
        self.name = f"Redis, WAIT {replicas}"
        self.ports = [port]
        self._pids = pids
        self._replicas = replicas

    def client(self, port: int) -> _RedisClient:
        """Connect to the master."""
        return _RedisClient(port, self._replicas)

    def cpu(self) -> float:
        """See Store."""
        return sum(map(cpu_of_tree, self._pids))


@contextlib.contextmanager
def redis_store(directory: Path, replicas: int) -> Iterator[RedisStore]:
    """Run a master with two replicas; NotHereError where Redis is not installed."""
    if redis_program() is None:
        raise NotHereError("redis-server is not installed")
    with contextlib.ExitStack() as running:
        ports = [
            running.enter_context(redis_server(directory / f"redis{n}", "--appendfsync", "always"))
            for n in range(_REDIS_SERVERS)
        ]
        clients = [running.enter_context(contextlib.closing(_RedisClient(p, 0))) for p in ports]
        for one in clients[1:]:
            one.call(b"REPLICAOF", b"127.0.0.1", b"%d" % ports[0])
        wanted = b":%d" % (_REDIS_SERVERS - 1)
        while clients[0].call(b"WAIT", wanted[1:], b"1000") != wanted:
            pause(_PAUSE_SECONDS)
        yield RedisStore(ports[0], [_redis_pid(one) for one in clients], replicas)


def _redis_pid(client: _RedisClient) -> int:
    return int(client.call(b"INFO", b"server").partition(b"process_id:")[2].split(b"\r\n")[0])


class _PostgresClient:
    """A connection that runs prepared statements by simple queries."""

    def __init__(self, port: int) -> None:
        self._connection = _Connection(port)
        words = b"user\0bench\0database\0postgres\0\0"
        self._connection.send(struct.pack("!II", len(words) + 8, _POSTGRES_PROTOCOL) + words)
        self._finish()
        self.query(
            "prepare put(bigint, text) as insert into t values ($1, $2) "
            "on conflict (k) do update set v = excluded.v; "
            "prepare get(bigint) as select v from t where k = $1"
        )

    def query(self, text: str) -> None:
        """Run statements, and wait for their end."""
        words = text.encode() + b"\0"
        self._connection.send(b"Q" + struct.pack("!I", len(words) + 4) + words)
        self._finish()

    def _finish(self) -> None:
        kind = b""
        while kind != b"Z":
            kind, length = struct.unpack("!cI", self._connection.exactly(5))
            content = self._connection.exactly(length - 4)
            if kind == b"E":
                raise ConnectionError(f"PostgreSQL answers {content[:200]!r}")

    def put(self, number: int, text: str) -> None:
        self.query(f"execute put({number}, '{text}')")

    def get(self, number: int) -> None:
        self.query(f"execute get({number})")

    def close(self) -> None:
        self._connection.close()


class PostgresStore(_Connected):
    """See the module."""

    name = "PostgreSQL"

    def __init__(self, primary: Postgres, standby: Postgres) -> None:
        self.ports = [primary.port]
        self._servers = (primary, standby)

    def client(self, port: int) -> _PostgresClient:
        """Connect to the primary."""
        return _PostgresClient(port)

    def cpu(self) -> float:
        """See Store."""
        return sum(cpu_of_tree(server.pid) for server in self._servers)


@contextlib.contextmanager
def postgres_store(directory: Path) -> Iterator[PostgresStore]:
    """Run a primary with a synchronous standby; NotHereError where it is not installed."""
    if not (POSTGRES / "postgres").exists():
        raise NotHereError("PostgreSQL is not installed")
    directory.chmod(0o755)
    primary, standby = Postgres(directory / "pg0"), Postgres(directory / "pg1")
    more = {"max_connections": str(_POSTGRES_CONNECTIONS)}
    try:
        primary.start(synchronous_standby_names="standby", synchronous_commit="on", **more)
        standby.start_standby(primary, "standby", **more)
        primary.sql("set synchronous_commit = local; create table t (k bigint primary key, v text)")
        while primary.sql(_IN_SYNC) != "1":
            pause(_PAUSE_SECONDS)
        yield PostgresStore(primary, standby)
    finally:
        primary.stop()
        standby.stop()
