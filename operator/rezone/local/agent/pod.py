"""One pod on one node, from binding to removal.

A worker is one task. It lives (volumes, init containers, containers) until the pod is to be
deleted, then terminates what runs, reports and removes the object. A second task writes the status
whenever something changed. `suspend` drops both and leaves the processes: another worker with the
same record takes them up.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import structlog

from rezone.local.agent.container import Container, ContainerContext, kill
from rezone.local.agent.events import record_event
from rezone.local.agent.records import PodRecord, now_text
from rezone.local.agent.settings import Services
from rezone.local.agent.status import pod_status
from rezone.local.agent.volumes import VolumeWait, prepare_account, prepare_volumes
from rezone.local.agent.waiting import cancelled, ended
from rezone.local.api import STRATEGIC_PATCH, Json
from rezone.local.errors import ApiError
from rezone.local.processes import remove_tree

_RETRY_SECONDS = 1.0

_OVER = frozenset({"Succeeded", "Failed"})

_log = structlog.get_logger(__name__)


class PodWorker:
    """Brings one pod to life and to its end."""

    def __init__(self, pod: Json, record: PodRecord, services: Services) -> None:
        self.record = record
        self._pod = pod
        self._services = services
        self._directory = services.pod_directory(pod)
        self._containers: dict[str, Container] = {}
        self._dirty = asyncio.Event()
        self._delete = asyncio.Event()
        self._vanished = False
        self._final = False
        self._written = ""
        self._log = _log.bind(pod=f"{record.namespace}/{record.name}", node=record.node)
        self._task: asyncio.Task[None] | None = None

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self.record.uid

    def start(self) -> None:
        """Begin to work; processes of an earlier worker are taken up."""
        self._task = asyncio.create_task(self._run(), name=f"pod {self.record.name}")

    @property
    def done(self) -> bool:
        """Whether nothing of the pod is left."""
        return self._task is not None and self._task.done()

    async def finished(self) -> None:
        """Wait until nothing of the pod is left."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def update(self, pod: Json) -> None:
        """Take a newer version of the object; a watch may lag behind our own writes."""
        if _version(pod) < _version(self._pod):
            return
        self._pod = pod
        self._dirty.set()
        if pod["metadata"].get("deletionTimestamp"):
            self._delete.set()

    def vanish(self) -> None:
        """End at once: the object is gone from the API, nobody waits for a graceful end."""
        self._vanished = True
        self._delete.set()

    async def suspend(self, *, kill_processes: bool = False) -> None:
        """Stop working; the processes stay unless they are to be killed."""
        await cancelled(self._task)
        if kill_processes:
            killed = [kill(item) for item in self.record.containers.values()]
            await asyncio.gather(*(ended(process) for process in killed if process))

    def log_path(self, container: str, *, previous: bool) -> Path | None:
        """Return the log of a container's present or previous run, None if there is none."""
        record = self.record.containers.get(container)
        run = (record.runs if record else 0) - (2 if previous else 1)
        path = self._directory / container / f"{run}.log"
        return path if run >= 0 and path.exists() else None

    async def _run(self) -> None:
        publisher = asyncio.create_task(self._publish_forever())
        live: asyncio.Task[None] | None = None
        try:
            if self._pod["metadata"].get("deletionTimestamp"):
                self._delete.set()
            live = asyncio.create_task(self._live_retrying())
            await self._delete.wait()
            await cancelled(live)
            await self._terminate()
        finally:
            await cancelled(live)
            await cancelled(publisher)
        await self._remove()

    async def _live_retrying(self) -> None:
        while True:
            try:
                await self._live()
            except ApiError as error:
                self._log.warning("retrying the pod", error=str(error))
            except Exception:  # noqa: BLE001 - one pod's trouble must not end the others
                self._log.exception("retrying the pod")
            else:
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _live(self) -> None:
        """Run the pod until its containers are over; what ran before this call is taken up."""
        if self._pod.get("status", {}).get("phase") in _OVER:
            return
        self.record.start_time = self.record.start_time or now_text()
        if not self.record.address:
            name = f"{self.record.namespace}/{self.record.name}"
            self.record.address = self._services.addresses.for_pod(self.uid, name)
        self._changed()
        context = await self._context()
        refresher = asyncio.create_task(self._refresh_forever())
        try:
            await self._run_containers(context)
        finally:
            await cancelled(refresher)

    async def _run_containers(self, context: ContainerContext) -> None:
        spec = self._pod["spec"]
        policy = str(spec.get("restartPolicy", "Always"))
        for item in spec.get("initContainers", []):
            container = self._container(item, context)
            if not container.record.succeeded:
                await container.keep("Never" if policy == "Never" else "OnFailure")
            if not container.record.succeeded:
                self._finish()
                return
        containers = [self._container(item, context) for item in spec["containers"]]
        async with asyncio.TaskGroup() as group:
            for each in containers:
                group.create_task(each.keep(policy))
        self._finish()

    def _finish(self) -> None:
        self._final = True
        self._changed()

    async def _context(self) -> ContainerContext:
        """Make volumes and account, waiting for what they need."""
        waited_for = ""
        while True:
            try:
                volumes = await prepare_volumes(self._known_pod(), self._services)
                kubeconfig = await prepare_account(self._known_pod(), self._services)
                break
            except VolumeWait as wait:
                if str(wait) != waited_for:
                    waited_for = str(wait)
                    record_event(self._services, self._pod, "FailedMount", waited_for)
                await asyncio.sleep(_RETRY_SECONDS)
        return ContainerContext(
            pod=self._known_pod,
            directory=self._directory,
            address=self.record.address,
            kubeconfig=kubeconfig,
            volumes=volumes,
            changed=self._changed,
        )

    async def _refresh_forever(self) -> None:
        """Keep tokens and mounted ConfigMaps and Secrets fresh."""
        while True:
            await asyncio.sleep(self._services.settings.refresh_seconds)
            try:
                await prepare_volumes(self._known_pod(), self._services)
                await prepare_account(self._known_pod(), self._services)
            except (VolumeWait, ApiError) as error:
                self._log.warning("refreshing volumes failed", error=str(error))

    def _container(self, spec: Json, context: ContainerContext) -> Container:
        record = self.record.container(spec["name"])
        container = Container(spec, record, context, self._services)
        self._containers[record.name] = container
        return container

    def _known_pod(self) -> Json:
        """Return the pod with its addresses, which the API may not show yet."""
        host = self._services.node_address(self.record.node) or ""
        status = {**self._pod.get("status", {}), "podIP": self.record.address, "hostIP": host}
        return {**self._pod, "status": status}

    async def _terminate(self) -> None:
        metadata = self._pod["metadata"]
        default = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        grace = (
            0.0 if self._vanished else float(metadata.get("deletionGracePeriodSeconds", default))
        )
        await self._adopt_for_stop()
        if any(item.process for item in self.record.containers.values()):
            record_event(self._services, self._pod, "Killing", f"Stopping pod {self.record.name}")
        async with asyncio.TaskGroup() as group:
            for container in self._containers.values():
                group.create_task(container.stop(grace, hook=not self._vanished))
        self._finish()

    async def _adopt_for_stop(self) -> None:
        """Take up processes of an earlier agent that this worker had no time to look at."""
        missing = [name for name in self.record.containers if name not in self._containers]
        if not missing:
            return
        specs = [*self._pod["spec"].get("initContainers", []), *self._pod["spec"]["containers"]]
        context = ContainerContext(
            pod=self._known_pod,
            directory=self._directory,
            address=self.record.address,
            kubeconfig=None,
            volumes={},
            changed=self._changed,
        )
        for spec in specs:
            if spec["name"] in missing:
                # Hooks need the volumes; without them the process only gets its signals.
                self._container({**spec, "lifecycle": {}}, context)

    async def _remove(self) -> None:
        """Report the end, remove the object, and then all that is left of it here."""
        while not self._vanished:
            try:
                await self._publish()
                path = f"/api/v1/namespaces/{self.record.namespace}/pods/{self.record.name}"
                await self._services.api.delete(path, uid=self.uid, grace_seconds=0)
                break
            except ApiError as error:
                self._log.warning("removing the pod failed", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        self._services.addresses.release_pod(self.uid)
        remove_tree(self._directory)
        self._log.info("pod removed")

    def _changed(self) -> None:
        self.record.save(self._directory)
        self._dirty.set()

    async def _publish_forever(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._publish()
            except ApiError as error:
                self._log.warning("writing the status failed", error=str(error))
                self._dirty.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _publish(self) -> None:
        """Write the status if it differs from what was written last."""
        host = self._services.node_address(self.record.node)
        if host is None or self._vanished:
            return
        status = pod_status(self._pod, self.record, host=host, final=self._final)
        compared = json.dumps(status, sort_keys=True)
        if compared == self._written:
            return
        path = f"/api/v1/namespaces/{self.record.namespace}/pods/{self.record.name}/status"
        # The uid makes the patch miss another pod that has this name by now.
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            self._pod = await self._services.api.patch(path, body, STRATEGIC_PATCH)
        except ApiError as error:
            if error.not_found or error.conflict:
                self._log.info("the pod is gone", error=str(error))
                return
            raise
        self._written = compared


def _version(pod: Json) -> int:
    return int(pod["metadata"]["resourceVersion"])
