"""The operator's command: who loses its Lease begins again, in the same process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from operated_cluster import TestCluster, until
from operator_process import end_of, environment_of

from rezone.local.api import KubeApi
from rezone.local.controlplane import free_ports

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "begins-again"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LEASE = "rezone-operator"
SOMEBODY = "somebody"
LIVES = 3
SECONDS = 20.0


@contextlib.contextmanager
def command(cluster: TestCluster, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator as users do; it ends in order."""
    (port,) = free_ports(1)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rezone.cli.main", "operator"],
            env=environment_of(cluster, NAMESPACE, port),
            stdout=out,
            stderr=out,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, end_of(log)
    finally:
        process.kill()
        process.wait()


def passed_on(pid: int) -> list[str]:
    """Return what a process has open, beside its output, that another program in it would have."""
    found = []
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            flags = re.search(r"^flags:\s*(\d+)", path.read_text(), re.MULTILINE)
            assert flags is not None
            if int(path.name) > 2 and not int(flags[1], 8) & os.O_CLOEXEC:
                found.append(f"{path.name}: {os.readlink(f'/proc/{pid}/fd/{path.name}')}")  # noqa: PTH115
    return found


async def until_nothing_is_passed_on(pid: int) -> None:
    """Wait for that: OpenSSL has files of certificates open for a moment. Else lives leave more."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS):
            # Nobody tells when a process closes a file.
            while passed_on(pid):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert passed_on(pid) == []


async def test_who_loses_its_lease_begins_again_in_its_process(
    cluster: TestCluster, tmp_path: Path
) -> None:
    """The kubelet starts a container that has ended after a pause, which grows to five minutes."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    log = tmp_path / "operator.log"
    async with KubeApi(cluster.kubeconfig) as api:
        with command(cluster, log) as process:
            for _ in range(LIVES):
                lease = await until(
                    api,
                    PATH,
                    LEASE,
                    lambda o: o.get("spec", {}).get("holderIdentity") not in {None, "", SOMEBODY},
                )
                assert process.poll() is None, end_of(log)
                await until_nothing_is_passed_on(process.pid)
                taken = {
                    "holderIdentity": SOMEBODY,
                    "leaseTransitions": lease["spec"]["leaseTransitions"] + 1,
                }
                await api.patch(f"{PATH}/{LEASE}", {"spec": taken})
            await until(api, PATH, LEASE, lambda o: o["spec"]["holderIdentity"] != SOMEBODY)
            assert process.poll() is None, end_of(log)
    assert log.read_text().count("lease lost") == LIVES
