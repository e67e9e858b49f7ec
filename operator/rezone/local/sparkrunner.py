"""Runs SparkApplications: a controller that gives each one a driver pod, by a launcher.

On one machine the node agent runs the driver as it runs every pod, so logs, volumes, service
account and node failures are as for any other; the end-to-end suite has a launcher that submits
to a real cluster. One task looks at one application at a time; it only ever acts on what it has
just read.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
from pathlib import Path
from typing import Protocol

import click
import structlog
import yaml

from rezone.local.api import Json, KubeApi
from rezone.local.errors import ApiError, LaunchError, told_in_a_line
from rezone.local.sparkapplication import (
    APP_LABEL,
    GROUP_VERSION,
    LAUNCHED_LABEL,
    Plan,
    decide,
    driver_name,
    submission_failed,
)
from rezone.local.sparkdriver import LocalLauncher

_GROUP = f"/apis/{GROUP_VERSION}"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD_FILE = Path(__file__).with_name("sparkapplications.crd.yaml")
_RETRY_SECONDS = 1.0

_log = structlog.get_logger(__name__)

Key = tuple[str, str]


class Launcher(Protocol):
    """Starts drivers, each as a pod that its application owns."""

    async def launch(self, app: Json) -> None:
        """Start the application's driver; one that is there is left alone.

        Raises ApiError when it may go better later, LaunchError when it will not.
        """


class SparkRunner:
    """Brings every SparkApplication of a cluster to its end."""

    def __init__(self, api: KubeApi, launcher: Launcher) -> None:
        self._api = api
        self._launcher = launcher
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._queued: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Serve until cancelled; drivers go on then, and another runner takes them up."""
        await install_crd(self._api)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_applications())
                group.create_task(self._follow_drivers())
                group.create_task(self._work())
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _follow_applications(self) -> None:
        async for event, item in self._api.follow(f"{_GROUP}/sparkapplications"):
            if event == "DELETED":
                await self._end_driver_of(item)
                continue
            for app in item["items"] if event == "SYNC" else [item]:
                self._wake((app["metadata"]["namespace"], app["metadata"]["name"]))

    async def _end_driver_of(self, app: Json) -> None:
        """Delete the driver of a deleted application at once.

        The garbage collector does it by the owner reference as well, but it learns of a new kind
        of resource only every 30 seconds.
        """
        path = f"/api/v1/namespaces/{app['metadata']['namespace']}/pods/{driver_name(app)}"
        try:
            driver = await self._read(path)
            if driver is not None and _owned(driver, app):
                await self._api.delete(path, uid=driver["metadata"]["uid"])
        except ApiError as error:
            _log.warning("deleting a driver failed", error=str(error))

    async def _follow_drivers(self) -> None:
        selector = {"labelSelector": LAUNCHED_LABEL}
        async for event, item in self._api.follow("/api/v1/pods", **selector):
            for pod in item["items"] if event == "SYNC" else [item]:
                metadata = pod["metadata"]
                if name := metadata["labels"].get(APP_LABEL):
                    self._wake((metadata["namespace"], name))

    def _wake(self, key: Key) -> None:
        if key not in self._queued:
            self._queued.add(key)
            self._queue.put_nowait(key)

    def _wake_after(self, key: Key, seconds: float) -> None:
        previous = self._timers.pop(key, None)
        if previous is not None:
            previous.cancel()
        loop = asyncio.get_running_loop()
        self._timers[key] = loop.call_later(max(seconds, 0.0), self._wake, key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._queued.discard(key)
            try:
                await self.reconcile(*key)
            except ApiError as error:
                _log.warning("retrying", application=key, error=str(error))
                self._wake_after(key, _RETRY_SECONDS)

    async def reconcile(self, namespace: str, name: str) -> Plan | None:
        """Look at one application and take one step; None if it is gone. Raises ApiError."""
        path = f"{_GROUP}/namespaces/{namespace}/sparkapplications/{name}"
        app = await self._read(path)
        if app is None or app["metadata"].get("deletionTimestamp"):
            return None
        pod_path = f"/api/v1/namespaces/{namespace}/pods/{driver_name(app)}"
        driver = await self._read(pod_path)
        if driver is not None and not _owned(driver, app):
            _log.warning("a foreign pod has the driver's name", pod=driver_name(app))
            driver = None
        plan = decide(app, driver, dt.datetime.now(dt.UTC))
        await self._carry_out(plan, app, driver)
        if plan.again_after_seconds is not None:
            self._wake_after((namespace, name), plan.again_after_seconds)
        return plan

    async def _carry_out(self, plan: Plan, app: Json, driver: Json | None) -> None:
        metadata = app["metadata"]
        namespace = metadata["namespace"]
        path = f"{_GROUP}/namespaces/{namespace}/sparkapplications/{metadata['name']}"
        if plan.status:
            await self._write_status(path, app, plan.status)
        if plan.delete_driver and driver is not None:
            pods = f"/api/v1/namespaces/{namespace}/pods/{driver_name(app)}"
            await self._api.delete(pods, uid=driver["metadata"]["uid"])
        if plan.create_driver:
            try:
                await self._launcher.launch(app)
            except LaunchError as error:
                refused = submission_failed(dt.datetime.now(dt.UTC), str(error))
                await self._write_status(path, app, refused)
        if plan.delete_application:
            await self._api.delete(path, uid=metadata["uid"])

    async def _write_status(self, path: str, app: Json, status: Json) -> None:
        metadata = app["metadata"]
        state = status["applicationState"]["state"]
        _log.info("changing state", application=metadata["name"], state=state)
        # The version makes it a compare-and-set: the decision was made for this very object.
        version = {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
        await self._api.patch(f"{path}/status", {"metadata": version, "status": status})

    async def _read(self, path: str) -> Json | None:
        try:
            return await self._api.get(path)
        except ApiError as error:
            if error.not_found:
                return None
            raise


async def install_crd(api: KubeApi) -> None:
    """Install the CRD where it is absent and wait until it is served. Raises ApiError."""
    crd = yaml.safe_load(_CRD_FILE.read_text())
    try:
        await api.create(_CRDS, crd)
    except ApiError as error:
        if not error.conflict:
            raise
    while True:
        with contextlib.suppress(ApiError):
            await api.get(f"{_GROUP}/sparkapplications", limit="1")
            return
        await asyncio.sleep(_RETRY_SECONDS / 4)


def _owned(pod: Json, app: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == app["metadata"]["uid"] for owner in owners)


async def serve(kubeconfig: Path) -> None:
    """Run until SIGTERM or SIGINT."""
    async with KubeApi(kubeconfig) as api:
        await run_until_told(SparkRunner(api, LocalLauncher(api)))


async def run_until_told(runner: SparkRunner) -> None:
    """Run a runner until SIGTERM or SIGINT."""
    task = asyncio.create_task(runner.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
def main(kubeconfig: Path) -> None:
    """Run the SparkApplications of a local cluster."""
    with told_in_a_line():
        asyncio.run(serve(kubeconfig))


if __name__ == "__main__":
    main()
