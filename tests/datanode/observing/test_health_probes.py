"""Health over HTTP: what probes and Prometheus are answered."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from replica_cluster import cluster

from rezone.datanode.node import node_threads
from rezone.datanode.observing import health
from rezone.datanode.observing.health import HealthServer
from rezone.datanode.scheduling.workers import Job

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def test_a_probe_that_hangs_up_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On a busy machine a data node's log would fill with tracebacks, one for each late answer."""
    asked, hung_up = threading.Event(), threading.Event()

    def late(*_: object) -> tuple[int, str, bytes]:
        asked.set()
        assert hung_up.wait(10)
        return 200, "text/plain", b"ok"

    monkeypatch.setattr(health, "_answer", late)
    with cluster(tmp_path, 1) as nodes:
        server = HealthServer(nodes.node(0), "127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", server.port)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            probe.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert asked.wait(10)
        server.close()
        hung_up.set()
        for thread in threading.enumerate():
            if "process_request" in thread.name:
                thread.join(10)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.proves("NW-01")
def test_who_connects_and_asks_nothing_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port closes a connection without a request; each would keep a thread for ever."""
    monkeypatch.setattr(health, "REQUEST_SECONDS", 0.2)
    with cluster(tmp_path, 1) as nodes:
        server = HealthServer(nodes.node(0), "127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", server.port), 10) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", server.port), 10) as slow:
            slow.sendall(b"GET /healthz HTTP/1.0\r\n")
            assert slow.recv(1) == b""
        server.close()


@pytest.mark.proves("TR-03")
def test_a_node_whose_jobs_hang_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions would stand still for ever behind a probe that says 200."""
    with cluster(tmp_path, 1) as nodes:
        node = nodes.node(0)
        assert node.threads.alive
        hangs, over = threading.Event(), threading.Event()

        def hang() -> None:
            hangs.set()
            assert over.wait(10)

        monkeypatch.setattr(node_threads, "JOB_SECONDS_MAX", -1.0)
        node.wake(Job("hangs", hang))
        assert hangs.wait(10)
        assert health._answer(node, CollectorRegistry(), "/healthz")[0] == 503
        node.disk_speed.stalled_seconds = 70.0
        assert node.threads._disk_stalls(), "others lead by now: a restart would help nobody"
        over.set()


@pytest.mark.proves("OB-07")
def test_stacks_name_what_each_thread_does(tmp_path: Path) -> None:
    """Who helps with a data node that hangs would not see where; values are not told."""
    asked, over = threading.Event(), threading.Event()

    def waits_for_the_test(_row: str) -> None:
        asked.set()
        over.wait(30)

    thread = threading.Thread(target=waits_for_the_test, args=("a row",), name="hangs")
    thread.start()
    try:
        assert asked.wait(30)
        with cluster(tmp_path, 1) as nodes:
            server = HealthServer(nodes.node(0), "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.port}/stacks"
            with urllib.request.urlopen(url, timeout=30) as answer:
                told = answer.read().decode()
            server.close()
    finally:
        over.set()
        thread.join(30)
    (stack,) = (part for part in told.split("\n\n") if part.startswith("hangs\n"))
    calls = [line.split()[-1] for line in stack.splitlines()[1:]]
    assert calls[-1] == "wait"
    assert "waits_for_the_test" in calls
    assert "a row" not in told
