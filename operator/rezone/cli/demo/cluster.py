"""The demo's hold on its cluster: objects as JSON, kubectl as users run it, and the operator."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rezone.domain.routing.route_shards import decode_shard
from rezone.local.agent.records import load_record
from rezone.local.api import KubeApi
from rezone.wire.messages import LeaderAndIsr, PartitionId

NAMESPACE = "rezone-system"
POLL_SECONDS = 0.25

Json = dict[str, Any]


class DemoError(Exception):
    """Raised when a step does not come to its end; the message says where to look."""


class DemoCluster:
    """One cluster, through its API server; `state` is the local cluster's directory."""

    def __init__(self, api: KubeApi, kubeconfig: Path, kubectl: Path, state: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self._kubectl = kubectl
        self._state = state

    async def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl and return what it printed; DemoError with its message when it fails."""
        process = await asyncio.create_subprocess_exec(
            self._kubectl,
            "--kubeconfig",
            self.kubeconfig,
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(stdin.encode())
        if process.returncode:
            raise DemoError(f"kubectl {' '.join(words)}: {err.decode().strip()}")
        return out.decode()

    async def apply(self, *objects: Json) -> None:
        """Apply objects as `kubectl apply` does."""
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        await self.kubectl("apply", "--filename", "-", stdin=json.dumps(document))

    async def own(self, plural: str, name: str = "") -> Json:
        """Return one of our objects, or the list of all of a kind."""
        path = f"/apis/rezone.dev/v1alpha1/namespaces/{NAMESPACE}/{plural}"
        return await self.api.get(f"{path}/{name}" if name else path)

    async def pods(self, labels: str) -> list[Json]:
        """Return the pods that carry labels."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        items: list[Json] = (await self.api.get(path, labelSelector=labels))["items"]
        return items

    async def routes(self, zone: str) -> tuple[LeaderAndIsr, ...]:
        """Return a zone's route table, by partition."""
        return tuple((await self.records(zone)).values())

    async def records(self, zone: str) -> dict[PartitionId, LeaderAndIsr]:
        """Return a zone's route records by the ids of their partitions, in their order."""
        labels = f"rezone.dev/zone={zone},app.kubernetes.io/component=routes"
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        shards = (await self.api.get(path, labelSelector=labels))["items"]
        found = [record for shard in shards for record in decode_shard(shard["data"]).items()]
        return dict(sorted(found))

    async def until(
        self,
        what: str,
        check: "Callable[[], Any]",
        *,
        timeout_seconds: float = 120.0,
    ) -> Any:
        """Wait until the coroutine function `check` returns something true, and return that."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = await check()
            if found:
                return found
            if time.monotonic() > deadline:
                raise DemoError(f"waited {timeout_seconds:.0f} s for {what}")
            await asyncio.sleep(POLL_SECONDS)

    def operator_pid(self) -> int | None:
        """Return the operator's process group, None while it does not run."""
        for directory in (self._state / "pods").glob(f"{NAMESPACE}_rezone-operator-*"):
            record = load_record(directory)
            container = record.containers.get("operator") if record is not None else None
            process = container.process if container is not None else None
            if process is not None:
                return process.pid
        return None

    async def kill_operator(self) -> int:
        """Kill the operator with SIGKILL and wait until the agent has started it again."""
        old = self.operator_pid()
        if old is None:
            raise DemoError("the operator does not run")
        # The group: the recorded process is the shell that keeps the exit code for the agent.
        os.killpg(old, signal.SIGKILL)

        async def restarted() -> bool:
            return self.operator_pid() not in (None, old)

        await self.until("the operator to be started again", restarted, timeout_seconds=60)
        return old
