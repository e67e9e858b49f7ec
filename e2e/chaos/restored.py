"""The API server's objects go back in time: etcd is restored from a copy."""

from __future__ import annotations

import shutil
import signal

from e2e.chaos.fault import Fault
from e2e.chaos.world import World
from rezone.cli.demo.cluster import NAMESPACE
from rezone.local.errors import ApiError

_MARKER = "chaos-marker"
_STOP_SECONDS = 10.0
_CONTROL_PLANE = ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
_CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class Restored(Fault):
    """etcd is put back from a copy, and all controllers are restarted, as a person would do it.

    Between the copy and the restore a data node was killed, so that leaders have changed.
    """

    def __init__(self, world: World, node: int) -> None:
        self._world = world
        self._node = node
        self._data = world.state / "cluster" / "etcd"
        self._copy = world.state / "etcd.copy"

    async def prepare(self) -> None:
        """Make the copy; then leaders change, and something is noted that the copy lacks."""
        self._copy_stopped()
        marker = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _MARKER}}
        await self._world.cluster.api.create(_CONFIG_MAPS, marker)
        self._world.nodes()[self._node].process.signal(signal.SIGKILL)

    def _copy_stopped(self) -> None:
        etcd = self._world.part("etcd")
        etcd.signal(signal.SIGSTOP)
        try:
            shutil.copytree(self._data, self._copy)
        finally:
            etcd.signal(signal.SIGCONT)

    async def begin(self) -> None:
        """Restore it, and restart the control plane, the agent and the operator."""
        supervisor = self._world.part("supervisor")
        supervisor.signal(signal.SIGSTOP)
        try:
            for name in (*_CONTROL_PLANE, "agent"):
                process = self._world.part(name)
                process.signal(signal.SIGKILL)
                process.wait(_STOP_SECONDS)
            self._world.operator().process.signal(signal.SIGKILL)
            shutil.rmtree(self._data)
            self._copy.rename(self._data)
        finally:
            supervisor.signal(signal.SIGCONT)

    async def heal(self) -> None:
        """Do nothing: it is not undone."""

    async def bites(self) -> int:
        """Return whether what was noted behind the copy is forgotten."""
        try:
            await self._world.cluster.api.get(f"{_CONFIG_MAPS}/{_MARKER}")
        except ApiError as error:
            return int(error.not_found)
        return 0
