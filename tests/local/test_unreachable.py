"""An API server that gives no answer: a line that says so, and no traceback."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from rezone.local.agent import __main__ as agent
from rezone.local.agent.provisioner import Provisioner
from rezone.local.api import KubeApi
from rezone.local.certificates import CertificateAuthority
from rezone.local.commands import local
from rezone.local.controlplane import LOOPBACK, ControlPlane, free_ports, write_kubeconfig
from rezone.local.errors import UnreachableError
from rezone.local.sparkrunner import main as spark_runner


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Give the state directory of a cluster whose API server is gone."""
    authority = CertificateAuthority(tmp_path / "pki")
    (port,) = free_ports(1)
    write_kubeconfig(
        ControlPlane(tmp_path).own_kubeconfig,
        server=f"https://{LOOPBACK}:{port}",
        authority=authority.certificate_path,
        user={"token": "none"},
    )
    (tmp_path / "cluster.json").write_text('{"nodes": [], "nodes_made": true}')
    return tmp_path


@pytest.fixture
def kubeconfig(state: Path) -> Path:
    """Give the kubeconfig of that cluster's parts."""
    return ControlPlane(state).own_kubeconfig


@pytest.mark.parametrize("words", [["add-node", "x"], ["remove-node", "x"], ["fail-node", "x"]])
def test_commands_say_it_in_a_line(state: Path, words: list[str]) -> None:
    """Asserts that a command names the server and why it gives no answer.

    Without it a person reads sixty lines of a HTTP client to learn that the cluster is down.
    """
    done = CliRunner().invoke(local, ["--state-dir", str(state), *words])
    assert done.exit_code == 1
    assert isinstance(done.exception, SystemExit)
    (line,) = done.output.strip().splitlines()
    assert "does not answer" in line
    assert "https://127.0.0.1:" in line


@pytest.mark.parametrize("part", ["agent", "runner"])
def test_parts_of_the_cluster_end_with_a_line(state: Path, kubeconfig: Path, part: str) -> None:
    """Asserts that a part that finds no API server at its start says so, and ends.

    Without it the supervisor's restarts fill the log with tracebacks.
    """
    directories = ["--state-dir", str(state), "--pki-dir", str(state / "pki")]
    command: Command = agent.main if part == "agent" else spark_runner
    words = ["--kubeconfig", str(kubeconfig), *(directories if part == "agent" else [])]
    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, SystemExit)
    assert "does not answer" in str(done.exception.code)


async def test_a_claim_is_provisioned_later(state: Path, kubeconfig: Path) -> None:
    """Asserts that provisioning a volume outlives a moment without the API server.

    Without it the agent ends, and with it the heartbeats of all nodes.
    """
    claim = {
        "metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": {
            "storageClassName": "rezone-local",
            "resources": {"requests": {"storage": "1Gi"}},
            "accessModes": ["ReadWriteOnce"],
        },
    }
    async with KubeApi(kubeconfig) as api:
        provisioner = Provisioner(api, state / "volumes", lambda _name: True)
        with pytest.raises(UnreachableError):
            await provisioner.provision(claim, "worker-1")
        await provisioner._logged(provisioner.provision(claim, "worker-1"))


async def test_a_watch_goes_on(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asserts that a watch asks again, and tells nobody, while the API server is away.

    Without it each part of the cluster ends with its API server.
    """
    asked = 0
    tried = asyncio.Event()

    async def get(_path: str, **_params: str) -> dict[str, object]:
        nonlocal asked
        asked += 1
        if asked > 1:
            tried.set()
        raise UnreachableError("https://nowhere", "refused")

    async with KubeApi(kubeconfig) as api:
        monkeypatch.setattr(api, "get", get)
        monkeypatch.setattr("rezone.local.api._RETRY_SECONDS", 0.0)
        events = api.follow("/api/v1/nodes")

        async def first() -> object:
            return await anext(events)

        following = asyncio.create_task(first())
        async with asyncio.timeout(20):
            await tried.wait()
        assert not following.done()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following


def test_the_administrators_kubeconfig_keeps_what_they_set(tmp_path: Path) -> None:
    """Asserts that a kubeconfig that still reaches the cluster is left as it is.

    Without it `kubectl config set-context --current --namespace ...` lasts for two seconds, until
    the supervisor has looked.
    """
    plane = ControlPlane(tmp_path)
    authority = CertificateAuthority(tmp_path / "pki")
    plane._write_kubeconfig(authority)
    changed = plane.kubeconfig.read_text().replace("namespace: default", "namespace: theirs")
    assert "theirs" in changed
    plane.kubeconfig.write_text(changed)
    plane._write_kubeconfig(authority)
    assert plane.kubeconfig.read_text() == changed
    assert "theirs" not in plane.own_kubeconfig.read_text()
    plane.kubeconfig.write_text(changed.replace(plane.server, "https://127.0.0.1:1"))
    plane._write_kubeconfig(authority)
    assert plane.server in plane.kubeconfig.read_text(), "one that does not reach it is replaced"
