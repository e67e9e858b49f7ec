"""Other ways to move a partition's bytes, for comparison: sendfile, Redis Cluster, PostgreSQL.

Each runs its own servers on loopback, in a directory of its own, and ends them by their process
ids. PostgreSQL refuses to run as root: then it runs as the user `postgres`.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from replica_cluster import free_port

_Set = tuple[bytes, bytes, bytes]
_CHUNK = 4 << 20
_PACED_CHUNK = 256 << 10
_SYNC_BYTES = 64 << 20
POSTGRES = Path("/usr/lib/postgresql/15/bin")
_DEADLINE_SECONDS = 1800.0


def pause(seconds: float) -> None:
    """Wait a little: what is waited for is another program."""
    threading.Event().wait(seconds)


# --- sendfile -----------------------------------------------------------------------------------


def sendfile_copy(directory: Path, size: int, bytes_per_second: float = 0) -> float:
    """Return the seconds from the first byte sent until the receiver's fsync has returned.

    As fast as it goes; or evenly at a rate, made durable now and then as data nodes do.
    """
    source, target = directory / "sent", directory / "received"
    if not source.exists():
        noise = random.Random(3).randbytes(_CHUNK)
        with source.open("wb") as file:
            for start in range(0, size, _CHUNK):
                file.write(noise[: min(_CHUNK, size - start)])
            os.fsync(file.fileno())
    target.unlink(missing_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            _receive(server, target, _SYNC_BYTES if bytes_per_second else size)
        with (
            socket.create_connection(server.getsockname()) as connection,
            source.open("rb") as file,
        ):
            begun = time.monotonic()
            at, chunk = 0, _PACED_CHUNK if bytes_per_second else size
            while at < size:
                at += os.sendfile(connection.fileno(), file.fileno(), at, min(chunk, size - at))
                if bytes_per_second:
                    pause(max(0.0, begun + at / bytes_per_second - time.monotonic()))
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"d"
            seconds = time.monotonic() - begun
        os.waitpid(child, 0)
    return seconds


def _receive(server: socket.socket, target: Path, sync_bytes: int) -> None:
    """Be the receiving process, to its end; makes durable each time what so many bytes are."""
    connection, _ = server.accept()
    buffer = memoryview(bytearray(_CHUNK))
    unsynced = 0
    with target.open("wb", buffering=0) as file:
        while count := connection.recv_into(buffer):
            file.write(buffer[:count])
            unsynced += count
            if unsynced >= sync_bytes:
                os.fdatasync(file.fileno())
                unsynced = 0
        os.fsync(file.fileno())
    connection.sendall(b"d")
    os._exit(0)


# --- Redis --------------------------------------------------------------------------------------


class Redis:
    """A connection that pipelines commands."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")

    def send(self, *commands: tuple[bytes, ...]) -> list[bytes]:
        """Send commands, return the first line of each answer."""
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in command]
        self._socket.sendall(b"".join(parts))
        return [self._file.readline() for _ in commands]

    def close(self) -> None:
        """Hang up."""
        self._file.close()
        self._socket.close()


def _redis_port() -> int:
    """Return a free port below those that the cluster bus has: it is at the port plus 10,000."""
    while True:
        port = free_port() % 40_000 + 10_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def redis_program() -> str | None:
    """Return where Redis is; None where it is not installed."""
    return shutil.which("redis-server")


@contextlib.contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[int]:
    """Run a server with an append-only file, and these options; gives its port."""
    directory.mkdir()
    port = _redis_port()
    process = subprocess.Popen(
        [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)),
            *("--save", "", "--appendonly", "yes", "--loglevel", "warning", *options),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            with contextlib.suppress(OSError):
                Redis(port).close()
                break
            pause(0.05)
        yield port
    finally:
        process.kill()
        process.wait()


def redis_reshard(
    directory: Path, rows: int, value_bytes: int, per_second: float, each: int
) -> float:
    """Return the seconds that moving all slots to an empty node takes."""
    cluster = ("--cluster-enabled", "yes", "--appendfsync", "everysec")
    with (
        redis_server(directory / "redis0", *cluster) as first,
        redis_server(directory / "redis1", *cluster) as second,
    ):
        loader = Redis(first)
        loader.send((b"CLUSTER", b"ADDSLOTSRANGE", b"0", b"16383"))
        Redis(second).send((b"CLUSTER", b"MEET", b"127.0.0.1", str(first).encode()))
        noise = random.Random(5).randbytes(value_bytes * 500)
        values = [noise[i * value_bytes : (i + 1) * value_bytes] for i in range(500)]
        while not _redis_ready(first, second):
            pause(0.1)
        for start in range(0, rows, 500):
            numbers = range(start, min(start + 500, rows))
            loader.send(*((b"SET", n.to_bytes(8, "big"), values[n % 500]) for n in numbers))
        stop = threading.Event()
        rng = random.Random(7)

        def turn() -> list[_Set]:
            numbers = [rng.randrange(rows) for _ in range(each)]
            return [(b"SET", n.to_bytes(8, "big"), rng.choice(values)) for n in numbers]

        writer = threading.Thread(
            target=_redis_writes, args=((first, second), stop, turn, per_second)
        )
        writer.start()
        try:
            begun = time.monotonic()
            subprocess.run(
                [
                    *("redis-cli", "--cluster", "reshard", f"127.0.0.1:{first}"),
                    *("--cluster-from", _redis_id(first), "--cluster-to", _redis_id(second)),
                    *("--cluster-slots", "16384", "--cluster-yes", "--cluster-pipeline", "200"),
                ],
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=_DEADLINE_SECONDS,
            )
            seconds = time.monotonic() - begun
        finally:
            stop.set()
            writer.join()
        for line in ("redis0", "redis1"):
            subprocess.run(["rm", "-rf", str(directory / line)], check=True)
        return seconds


def _redis_ready(*ports: int) -> bool:
    states = [
        subprocess.run(
            ["redis-cli", "-p", str(port), "CLUSTER", "INFO"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for port in ports
    ]
    return all("cluster_state:ok" in s and "cluster_known_nodes:2" in s for s in states)


def _redis_id(port: int) -> str:
    command = ["redis-cli", "-p", str(port), "CLUSTER", "MYID"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _redis_writes(
    ports: tuple[int, int],
    stop: threading.Event,
    turn: Callable[[], list[_Set]],
    per_second: float,
) -> None:
    """Write at a steady pace, to the other node what the first one sends there (once each)."""
    connections = [Redis(port) for port in ports]
    due = time.monotonic()
    while not stop.wait(max(0.0, due - time.monotonic())):
        due += 1 / per_second
        commands = turn()
        answers = connections[0].send(*commands)
        moved = [c for c, a in zip(commands, answers, strict=True) if not a.startswith(b"+OK")]
        if moved:
            connections[1].send(*[x for c in moved for x in ((b"ASKING",), c)])
    for connection in connections:
        connection.close()


# --- PostgreSQL ---------------------------------------------------------------------------------


class Postgres:
    """A server of its own, and ways to run its programs as an unprivileged user."""

    def __init__(self, directory: Path) -> None:
        self._data = directory
        self._prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **more: str) -> None:
        """Make the database and serve it; `more` are settings of the server."""
        self._make_directory()
        self.run("initdb", "-A", "trust", "-D", str(self._data), "-U", "bench")
        self._serve(more)

    def start_standby(self, primary: "Postgres", name: str, **more: str) -> None:
        """Be a physical standby of another one, under the application name `name`."""
        self._make_directory()
        host, port = ("host=127.0.0.1", f"port={primary.port}")
        self.run(
            "pg_basebackup", "-R", "-X", "stream", "-D", str(self._data),
            "-d", f"{host} {port} user=bench application_name={name}",
        )  # fmt: skip
        self._serve(more)

    def _make_directory(self) -> None:
        self._data.mkdir(mode=0o700)
        if self._prefix:
            subprocess.run(["chown", "postgres", str(self._data)], check=True)

    def _serve(self, more: dict[str, str]) -> None:
        options = {
            "wal_level": "logical",
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "1GB",
            "max_wal_size": "8GB",
            **more,
        }
        self._process = subprocess.Popen(
            [
                *self._prefix,
                *(str(POSTGRES / "postgres"), "-D", str(self._data)),
                *(word for key, value in options.items() for word in ("-c", f"{key}={value}")),
            ],
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        for _ in range(200):
            if self.run("pg_isready", *self.connection, check=False).returncode == 0:
                return
            pause(0.05)
        raise TimeoutError("PostgreSQL does not come up")

    @property
    def pid(self) -> int:
        """The process above all of it; only while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def connection(self) -> tuple[str, ...]:
        """Arguments that lead a program here."""
        return ("-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", "-d", "postgres")

    def run(
        self, program: str, *arguments: str, check: bool = True, stdin: bytes | None = None
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run one of its programs to its end."""
        command = [*self._prefix, str(POSTGRES / program), *arguments]
        return subprocess.run(command, capture_output=True, check=check, input=stdin, cwd="/")

    def background(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """Start one of its programs."""
        command = [*self._prefix, str(POSTGRES / program), *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        )

    def sql(self, text: str) -> str:
        """Run a statement."""
        return self.run("psql", *self.connection, "-qAtc", text).stdout.decode().strip()

    def stop(self) -> None:
        """End it at once."""
        if self._process is not None:
            self.run("pg_ctl", "stop", "-m", "immediate", "-D", str(self._data), check=False)
            self._process.wait()


def postgres_copy(
    directory: Path, rows: int, value_bytes: int, per_second: float, each: int
) -> float:
    """Return the seconds from CREATE SUBSCRIPTION until the table is synchronised."""
    directory.chmod(0o755)
    first, second = Postgres(directory / "pg0"), Postgres(directory / "pg1")
    try:
        for server in (first, second):
            server.start()
            server.sql("create table t (k bytea primary key, v bytea not null)")
            server.sql("alter table t alter v set storage external")
        first.sql(
            "create function noise(n int, seed bigint) returns bytea language sql as $$ select "
            "substr(string_agg(decode(md5((seed * 1000 + i)::text), 'hex'), ''), 1, n) "
            "from generate_series(0, n / 16) i $$"
        )
        first.sql(
            f"create table noises as select i, noise({value_bytes}, i) v "  # noqa: S608 - a number
            "from generate_series(0, 499) i"
        )
        first.sql(
            f"insert into t select int8send(n), v from generate_series(0, {rows - 1}) n "  # noqa: S608
            "join noises on i = n % 500"
        )
        first.sql("checkpoint")
        first.sql("create publication p for table t")
        script = directory / "writes.sql"
        script.write_text(
            f"\\set n random(0, {rows - each - 1})\n"  # noqa: S608 - numbers
            f"insert into t select int8send(:n + s), v from generate_series(0, {each - 1}) s "
            "join noises on i = s on conflict (k) do update set v = excluded.v;\n"
        )
        writes = first.background(
            "pgbench", *first.connection[:-2], "-n", "-f", str(script), "-R", str(per_second),
            "-T", "3600", "postgres",
        )  # fmt: skip
        try:
            begun = time.monotonic()
            second.sql(
                f"create subscription s connection 'host=127.0.0.1 port={first.port} "
                "user=bench dbname=postgres' publication p"
            )
            while second.sql("select srsubstate in ('s', 'r') from pg_subscription_rel") != "t":
                pause(0.05)
                assert time.monotonic() - begun < _DEADLINE_SECONDS
            return time.monotonic() - begun
        finally:
            writes.kill()
            writes.wait()
    finally:
        first.stop()
        second.stop()
        for name in ("pg0", "pg1"):
            subprocess.run(["rm", "-rf", str(directory / name)], check=True)
