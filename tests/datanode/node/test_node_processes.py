"""Real processes, killed without warning: what was acknowledged is there afterwards."""

from __future__ import annotations

import functools
import json
import random
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from replica_cluster import Client, Coordinator, ProcessNode, cluster
from write_load import PARTITION, Load

from rezone.wire.messages import NodeReport, ReplicaReport, ReportRequest, Role, ZoneConfig

pytestmark = pytest.mark.slow
QUICK = ("--replica-lag-ms-max=400",)


def process(c: Coordinator, node: int) -> ProcessNode:
    """Return the node's process."""
    found = c.nodes[node]
    assert isinstance(found, ProcessNode)
    return found


def agree(c: Coordinator) -> None:
    """Wait until all are in sync, and compare them."""
    c.until("all in sync", lambda: c.isr(PARTITION) == set(c.nodes))
    digests = c.until("digests", lambda: c.digests(PARTITION))
    assert len({d.digests for d in digests.values()}) == 1


@pytest.mark.proves("B-09")
def test_acknowledged_writes_survive_sigkill_of_all_without_a_coordinator(tmp_path: Path) -> None:
    """A crash of all nodes would lose rows, or stop the zone until the operator is back."""
    with cluster(tmp_path, 3, processes=True) as c:
        c.create(PARTITION, (0, 1, 2))
        load = Load(c, 2)
        load.wait_for(30)
        for node in c.nodes:
            process(c, node).kill()
        for node in c.nodes:
            process(c, node).start()
        # Nobody tells them anything: they go on from what they have on their disks.
        load.wait_for(10)
        load.stop()
        written = load.check()
        leader = c.report(0, PARTITION)
        assert leader.role is Role.LEADER
        assert leader.log_end_offset == written
        digests = c.until("digests", lambda: c.digests(PARTITION))
        assert len({d.digests for d in digests.values()}) == 1


@pytest.mark.proves("B-06")
def test_a_killed_follower_catches_up_and_a_killed_leader_is_replaced(tmp_path: Path) -> None:
    """A node that comes back would stay behind, or bring rows back that nobody else has."""
    with cluster(tmp_path, 3, processes=True, arguments=QUICK) as c:
        c.create(PARTITION, (0, 1, 2))
        c.watch()
        load = Load(c, 2)
        load.wait_for(10)
        process(c, 2).kill()
        c.until("shrunk", lambda: c.isr(PARTITION) == {0, 1})
        load.wait_for(10)
        process(c, 2).start()
        c.until("grown", lambda: c.isr(PARTITION) == {0, 1, 2})
        process(c, 0).kill()
        fail_over(c, 0)
        load.wait_for(10)
        process(c, 0).start()
        agree(c)
        load.stop()
        load.check()


def fail_over(c: Coordinator, dead: int) -> None:
    """Make the in-sync replica with the longest log lead, with the highest epoch."""
    with c.lock:
        record = c.records[PARTITION]
        alive = [n for n in record.isr if n != dead]
        reports: dict[int, ReplicaReport] = {
            n: c.until(f"node {n} answers", functools.partial(c.report, n, PARTITION))
            for n in alive
        }
        best = max(alive, key=lambda n: reports[n].log_end_offset)
        epoch = max(r.leader_epoch for r in reports.values())
        c.change(
            PARTITION,
            leader=best,
            leader_epoch=max(epoch, record.next_epoch or 0, record.leader_epoch) + 1,
            isr=tuple(alive),
            iss=(),
            next_leader=None,
            next_epoch=None,
        )


@pytest.mark.proves("DCP-11", "B-06", "RM-08")
def test_sigkill_in_a_takeover_under_load(tmp_path: Path) -> None:
    """A crash of either side somewhere in a takeover would lose rows or leave two leaders."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"\nseed {seed}")  # noqa: T201 - to run it again
    randomness = random.Random(seed)
    with cluster(tmp_path, 3, processes=True, arguments=QUICK) as c:
        c.create(PARTITION, (0, 1, 2))
        c.watch()
        load = Load(c, 3)
        load.wait_for(10)
        for victim in ("old leader", "candidate"):
            old = c.records[PARTITION].leader
            candidate = next(n for n in c.nodes if n != old)
            dead = old if victim == "old leader" else candidate
            with c.lock:
                c.authorise(PARTITION, candidate)
                c.takeover(PARTITION)
                threading.Event().wait(randomness.random() * 0.03)  # the crash's random moment
                process(c, dead).kill()
            settle_or_fail_over(c, dead)
            load.wait_for(10)
            process(c, dead).start()
            c.wait_up(dead)
            agree(c)
        load.stop()
        load.check()


def settle_or_fail_over(c: Coordinator, dead: int) -> None:
    """Take what has happened, or decide: the coordinator's part after a takeover (DCP-11)."""
    c.settle()
    if c.records[PARTITION].leader == dead or c.records[PARTITION].next_leader is not None:
        fail_over(c, dead)


def test_sigterm_ends_quickly_and_health_tells(tmp_path: Path) -> None:
    """A pod would be killed after its grace period on each restart, or get traffic too early."""
    ready = tmp_path / "ready"
    with cluster(tmp_path, 1, processes=True, arguments=(f"--ready-file={ready}",)) as c:
        c.create(PARTITION, (0,))
        k = Client(c)
        k.put(PARTITION, {b"a": b"1"})
        port = int(ready.read_text().split()[1])
        pages = {
            page: urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5).read()
            for page in ("healthz", "readyz", "metrics", "statistics")
        }
        assert pages["healthz"] == pages["readyz"] == b"ok\n"
        assert b'rezone_data_node_partitions{role="Leader"} 1.0' in pages["metrics"]
        assert json.loads(pages["statistics"])["connections"] == []
        assert process(c, 0).stop() == 0
        process(c, 0).start()
        c.wait_up(0)
        assert k.get(PARTITION, [b"a"]) == {b"a": b"1"}


@pytest.mark.proves("B-07")
def test_a_follower_that_is_told_to_stop_or_killed_holds_no_write_up(tmp_path: Path) -> None:
    """Writes would wait for its acks until it is taken for dead: for the lag limit of a minute."""
    lag = "--replica-lag-ms-max=60000"
    with cluster(tmp_path, 3, processes=True, arguments=(lag,)) as c:
        c.create(PARTITION, (0, 1, 2))
        c.watch()
        load = Load(c, 2)
        load.wait_for(10)
        assert process(c, 2).stop() == 0
        assert c.isr(PARTITION) == {0, 1}
        load.wait_for(50)
        process(c, 2).start()
        c.until("back in sync", lambda: c.isr(PARTITION) == {0, 1, 2})
        process(c, 2).kill()
        c.until("shrunk", lambda: c.isr(PARTITION) == {0, 1})
        load.wait_for(10)
        load.stop()
        load.check()


def test_a_leader_stops_when_nobody_comes_to_relieve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a coordinator a pod would wait for nothing, for its whole grace period."""
    monkeypatch.setenv("REZONE_NODE_LEAVE_UNREAD_MS_MAX", "1000")
    with cluster(tmp_path, 2, processes=True) as c:
        c.create(PARTITION, (0, 1))
        k = Client(c)
        k.put(PARTITION, {b"a": b"1"})
        assert process(c, 0).stop() == 0, "it was killed after ten seconds"


@pytest.mark.proves("B-07", "ZR-11")
def test_a_leader_that_is_told_to_stop_serves_until_it_has_handed_over(tmp_path: Path) -> None:
    """A pod's end would be a crash to its clients: nobody leads until a lease is over."""
    with cluster(tmp_path, 2, processes=True) as c:
        c.create(PARTITION, (0, 1))
        c.watch()
        load = Load(c, 2)
        load.wait_for(10)
        ending = threading.Thread(target=process(c, 0).stop)
        ending.start()
        c.until("leaving", lambda: c.call(0, ReportRequest(seen=-1), NodeReport).leaving)
        load.wait_for(20)
        assert ending.is_alive(), "it stopped although it led"
        with c.lock:
            c.authorise(PARTITION, 1)
            c.takeover(PARTITION)
        c.settle()
        ending.join(10)
        assert not ending.is_alive()
        load.wait_for(20)
        load.stop()
        load.check()


@pytest.mark.proves("B-06", "B-07")
def test_a_node_that_is_alone_in_sync_stops_when_another_one_is(tmp_path: Path) -> None:
    """Its disk may go with its pod, and with that all that was acknowledged while it was alone."""
    with cluster(tmp_path, 2, processes=True, arguments=QUICK) as c:
        c.create(PARTITION, (0, 1))
        c.watch()
        load = Load(c, 2)
        load.wait_for(10)
        process(c, 1).kill()
        c.until("alone", lambda: c.isr(PARTITION) == {0})
        leaving = process(c, 0).process
        assert leaving is not None
        leaving.send_signal(signal.SIGTERM)
        c.until("leaving", lambda: c.call(0, ReportRequest(seen=-1), NodeReport).leaving)
        load.wait_for(20)
        assert leaving.poll() is None, "it stopped with rows that nobody else has"
        process(c, 1).start()
        c.wait_up(1)
        c.until("both in sync", lambda: c.isr(PARTITION) == {0, 1})
        c.move(PARTITION, 1)
        assert leaving.wait(20) == 0
        load.wait_for(20)
        load.stop()
        load.check()


@pytest.mark.proves("OP-03", "B-07")
def test_a_pod_is_ready_when_its_replicas_are_in_sync(tmp_path: Path) -> None:
    """A budget would let a second pod go while the first one still lacks rows."""
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1, replicas=3)
    with cluster(tmp_path, 3, processes=True, arguments=QUICK, config=config) as c:
        ready = {n: tmp_path / f"ready-{n}" for n in c.nodes}
        for node, path in ready.items():
            process(c, node).stop()
            process(c, node).arguments = (*QUICK, f"--ready-file={path}")
            process(c, node).start()
            c.wait_up(node)
        c.create(PARTITION, (0, 1, 2))
        c.watch()
        c.until("ready", lambda: {readiness(path) for path in ready.values()} == {"ok"})
        load = Load(c, 2)
        load.wait_for(10)
        process(c, 2).kill()
        c.until("shrunk", lambda: c.isr(PARTITION) == {0, 1})
        with c.lock:
            # Nobody answers its proposals meanwhile: no coordinator.
            ready[2].unlink()
            process(c, 2).start()
            c.wait_up(2)
            load.wait_for(10)
            assert f"partition {PARTITION} is not in sync" in readiness(ready[2])
            assert readiness(ready[0]) == readiness(ready[1]) == "ok"
        c.until("ready again", lambda: readiness(ready[2]) == "ok")
        # On a busy machine a member may have fallen behind once more since.
        c.until("all in sync", lambda: c.isr(PARTITION) == {0, 1, 2})
        load.stop()
        load.check()


def readiness(ready_file: Path) -> str:
    """Return what a node says about its readiness; "" while it does not serve."""
    if not ready_file.exists():
        return ""
    port = ready_file.read_text().split()[1]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        return str(error.read().decode().strip())


def test_a_stop_signal_counts_whichever_thread_gets_it(tmp_path: Path) -> None:
    """The kernel may choose any: the node would serve on until it is killed, a pod for 90 s."""
    script = (
        "import signal, sys, threading\n"
        "from pathlib import Path\n"
        "from rezone.datanode import process\n"
        "ready = Path(sys.argv[2])\n"
        "def stop():\n"
        "    while not ready.exists():\n"
        "        threading.Event().wait(0.01)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "threading.Thread(target=stop, daemon=True).start()\n"
        "process.run(0, Path(sys.argv[1]), '127.0.0.1:0', 0, ready_file=ready)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data"), str(tmp_path / "ready")]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_node_reshards_no_pandas() -> None:
    """Where Spark is installed, a new leader's first write would wait until pandas is imported."""
    script = (
        "import sys\n"
        "from rezone.datanode import process\n"
        "process.leave_pandas_out()\n"
        "import pyarrow\n"
        "pyarrow.array([b'a', b'b'])\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_a_node_that_hangs_in_its_stop_ends_and_says_where(tmp_path: Path) -> None:
    """A pod would wait for its whole grace period, and nobody would ever learn why."""
    script = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from rezone.datanode import process\n"
        "from rezone.datanode.settings import NodeSettings\n"
        "process.DataNode.close = lambda self: threading.Event().wait()\n"
        "process.run(0, Path(sys.argv[1]), '127.0.0.1:0', 0,\n"
        "    settings=NodeSettings(stop_ms_max=100), ready_file=Path(sys.argv[2]))\n"
    )
    ready = tmp_path / "ready"
    hanging = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data"), str(ready)],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not ready.exists():
        assert hanging.poll() is None
    hanging.terminate()
    _, errors = hanging.communicate(timeout=30)
    assert hanging.returncode == 1
    assert "Timeout" in errors
    assert "<lambda>" in errors
