"""Leader moves of other systems under a writer: etcd's move-leader, Redis Cluster's failover.

Each runs its own servers on loopback, in a directory of its own, and ends them by their process
ids. A write has been acknowledged when it is on the disks of a majority (etcd), or on those of
the master and its one replica (Redis with `appendfsync always` and WAIT 1).
"""

import base64
import contextlib
import functools
import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from replica_cluster import free_port

from harness.peers import pause
from rezone.local.errors import LocalError
from rezone.local.tools import find_tools

_DEADLINE_SECONDS = 60.0
_ETCD_PUT_SECONDS = 0.1
"""What a leader had not passed on when it was moved is lost, and answered after 7 s (5 s, and two
election timeouts of 1 s). A client that is in a hurry puts again instead."""
_MEMBERS = 3
_SLOTS = 16384
_REDIS_PING_SECONDS = 1.5
_REDIS_FAILOVER_SECONDS = 6.0


class Peer(Protocol):
    """A running system with one leader."""

    name: str
    given_up: int

    def write(self, value: bytes) -> None:
        """Write the one key; return when that is acknowledged."""

    def move(self) -> float:
        """Have another node lead; return when it does and the one before follows.

        Returns when the attempt began that succeeded; `given_up` counts those that did not.
        """


class NotHereError(Exception):
    """Raised when this machine lacks a peer's program; the message names it."""


def _wait(what: str, check: Callable[[], object]) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_DEADLINE_SECONDS} s: {what}")
        pause(0.02)


# --- etcd ---------------------------------------------------------------------------------------


class _EtcdMember:
    """A connection to one member's JSON gateway; one thread's."""

    def __init__(self, port: int, timeout_seconds: float = _DEADLINE_SECONDS) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)

    def call(self, path: str, request: dict[str, str]) -> dict[str, Any] | None:
        """Return the answer, None for an error."""
        try:
            self._http.request("POST", path, json.dumps(request))
            answer = self._http.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            self._http.close()
            return None
        return json.loads(body) if answer.status == http.HTTPStatus.OK else None


class Etcd:
    """Three members; the writer is connected to one of them, as a client without a balancer."""

    name = (
        f"etcd, 3 members, raft log synced, move-leader; puts repeated after {_ETCD_PUT_SECONDS} s"
    )
    given_up = 0

    def __init__(self, ports: list[int], pids: list[int]) -> None:
        self.ports = ports
        self.pids = pids
        self._writer = _EtcdMember(ports[0], _ETCD_PUT_SECONDS)
        self._members = [_EtcdMember(port) for port in ports]
        self._ids: list[str] = []
        _wait("etcd has a leader", lambda: self._leader() is not None)
        for member in self._members:
            status = member.call("/v3/maintenance/status", {})
            assert status is not None
            self._ids.append(status["header"]["member_id"])

    def write(self, value: bytes) -> None:
        """Put, again after an error: the leader has changed meanwhile."""
        request = {
            "key": base64.b64encode(b"key").decode(),
            "value": base64.b64encode(value).decode(),
        }
        while self._writer.call("/v3/kv/put", request) is None:
            pass

    def _leader(self) -> str | None:
        answers = [member.call("/v3/maintenance/status", {}) for member in self._members]
        leaders = {answer.get("leader", "0") if answer else "0" for answer in answers}
        leader = leaders.pop()
        return leader if not leaders and leader != "0" else None

    def move(self) -> float:
        """Move to the next member, by a call to the leader."""
        begun = time.monotonic()
        leader = self._leader()
        assert leader is not None
        at = self._ids.index(leader)
        target = self._ids[(at + 1) % len(self._ids)]
        path = "/v3/maintenance/transfer-leadership"
        assert self._members[at].call(path, {"targetID": target}) is not None
        _wait("the target leads", lambda: self._leader() == target)
        return begun


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[Etcd]:
    """Run a cluster."""
    try:
        program = find_tools(["etcd"])["etcd"]
    except LocalError as error:
        raise NotHereError(f"etcd: {error}") from error
    ports = [(free_port(), free_port()) for _ in range(_MEMBERS)]
    members = ",".join(f"m{i}=http://127.0.0.1:{peer}" for i, (_, peer) in enumerate(ports))
    pids = []
    with contextlib.ExitStack() as running:
        for i, (client, peer) in enumerate(ports):
            urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
            command = [
                str(program),
                f"--name=m{i}",
                f"--data-dir={directory / f'etcd{i}'}",
                f"--listen-client-urls={urls['client']}",
                f"--advertise-client-urls={urls['client']}",
                f"--listen-peer-urls={urls['peer']}",
                f"--initial-advertise-peer-urls={urls['peer']}",
                f"--initial-cluster={members}",
                "--log-level=error",
            ]
            pids.append(running.enter_context(_process(command)))
        yield Etcd([client for client, _ in ports], pids)


# --- Redis --------------------------------------------------------------------------------------


class _Redis:
    """A connection that gives the first line of each answer, or all of a string; one thread's."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _DEADLINE_SECONDS)
        self._file = self._socket.makefile("rb")

    def call(self, *words: str | bytes) -> bytes:
        """Send a command, return its answer."""
        raw = [word.encode() if isinstance(word, str) else word for word in words]
        parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in raw]
        self._socket.sendall(b"*%d\r\n" % len(raw) + b"".join(parts))
        line = self._file.readline()
        if not line:
            raise ConnectionError("Redis has closed the connection")
        if line.startswith(b"$"):
            return self._file.read(int(line[1:]) + 2)
        return line.strip()


class Redis:
    """A master with one replica, and two more masters that vote; the writer follows MOVED."""

    name = "Redis Cluster, 1 replica, appendfsync always, WAIT 1, CLUSTER FAILOVER"
    given_up = 0

    def __init__(self, ports: list[int]) -> None:
        self._pair = (ports[0], ports[3])
        self._writers = {port: _Redis(port) for port in self._pair}
        self._admin = {port: _Redis(port) for port in ports}
        self._master = ports[0]
        self._form(ports)

    def _form(self, ports: list[int]) -> None:
        slots = [(0, _SLOTS - 3), (_SLOTS - 2, _SLOTS - 2), (_SLOTS - 1, _SLOTS - 1)]
        for port, (first, last) in zip(ports, slots, strict=False):
            self._admin[port].call("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for port in ports[1:]:
            self._admin[ports[0]].call("CLUSTER", "MEET", "127.0.0.1", str(port))
        _wait("all know all", lambda: all(self._knows(port, len(ports)) for port in ports))
        master = self._admin[ports[0]].call("CLUSTER", "MYID").strip().decode()
        replicate = ("CLUSTER", "REPLICATE", master)
        _wait("a replica", lambda: self._admin[ports[3]].call(*replicate) == b"+OK")
        _wait("all voters", lambda: all(self._ok(port) for port in ports))
        _wait("replicates", lambda: self._follows(ports[3]))

    def _knows(self, port: int, count: int) -> bool:
        return self._admin[port].call("CLUSTER", "NODES").count(b"connected") >= count

    def _ok(self, port: int) -> bool:
        return b"cluster_state:ok" in self._admin[port].call("CLUSTER", "INFO")

    def _follows(self, port: int) -> bool:
        state = self._admin[port].call("INFO", "replication")
        return b"role:slave" in state and b"master_link_status:up" in state

    def write(self, value: bytes) -> None:
        """SET and WAIT at the master, or where it has moved."""
        port = self._master
        answer = b"nothing"
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Redis takes no write; the last answer: {answer!r}")
            answer = self._writers[port].call("SET", "key", value)
            if answer == b"+OK" and self._writers[port].call("WAIT", "1", "1000") == b":1":
                self._master = port
                return
            if answer.startswith(b"-MOVED"):
                port = int(answer.rpartition(b":")[2])

    def move(self) -> float:
        """Have the replica fail over; ConnectionError and TimeoutError when it does not."""
        leading = [port for port in self._pair if not self._follows(port)]
        if len(leading) != 1:
            raise ConnectionError(f"{len(leading)} of the pair's two servers lead")
        (old,) = leading
        new = next(port for port in self._pair if port != old)
        begun = time.monotonic()
        deadline = begun + _DEADLINE_SECONDS
        while not self._failed_over(old, new):
            # It gives up by itself after five seconds, in which no write is taken.
            self.given_up += 1
            begun = time.monotonic()
            if begun > deadline:
                raise TimeoutError(f"Redis did not fail over within {_DEADLINE_SECONDS} s")
        online = b"state=online"
        _wait("it is a replica", lambda: online in self._admin[new].call("INFO", "replication"))
        # Nodes tell each other of offsets once a second; a failover before that times out.
        pause(_REDIS_PING_SECONDS)
        return begun

    def _failed_over(self, old: int, new: int) -> bool:
        answer = self._admin[new].call("CLUSTER", "FAILOVER")
        if answer != b"+OK":
            raise ConnectionError(f"Redis refuses to fail over: {answer!r}")
        deadline = time.monotonic() + _REDIS_FAILOVER_SECONDS
        while not (done := self._follows(old)) and time.monotonic() < deadline:
            pause(0.02)
        return done


@contextlib.contextmanager
def redis(directory: Path) -> Iterator[Peer]:
    """Run a cluster of four."""
    program = shutil.which("redis-server")
    if program is None:
        raise NotHereError("redis-server is not installed")
    # The cluster bus is at the port plus 10,000.
    ports = [free_port() % 40_000 + 10_000 for _ in range(4)]
    with contextlib.ExitStack() as running:
        for port in ports:
            home = directory / f"redis{port}"
            home.mkdir()
            command = [
                *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)),
                *("--cluster-enabled", "yes", "--save", "", "--appendonly", "yes"),
                *("--appendfsync", "always", "--loglevel", "warning"),
            ]
            running.enter_context(_process(command))
        for port in ports:
            _wait(f"port {port} is open", functools.partial(_open, port))
        yield Redis(ports)


def _open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
