"""The driver of a SparkApplication on one machine: a pod that runs spark-submit in local mode."""

from __future__ import annotations

from pathlib import Path

import rezone
from rezone.local.api import Json, KubeApi
from rezone.local.errors import ApiError
from rezone.local.sparkapplication import (
    APP_LABEL,
    LAUNCHED_LABEL,
    SUBMISSION_LABEL,
    driver_name,
    owner_of,
)

# Threads, and how often a task may fail before the job does (a plain local[N] allows no second
# attempt).
DEFAULT_MASTER = "local[2,4]"
_IMAGE_ROOT = "/opt/rezone/"
_SPARK_LOCAL = "/var/data/spark-local"
_DRIVER_GRACE_SECONDS = 5
# Left out: a process has this machine's own, in which files of the job may lie.
_TMP = "/tmp"  # noqa: S108 - a mount path
_GIVE_WAY = ("nice", "-n", "10")


class LocalLauncher:
    """Starts drivers whose executors are threads of them."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def launch(self, app: Json) -> None:
        """Create the driver's pod; one that is there is left alone. Raises ApiError."""
        pods = f"/api/v1/namespaces/{app['metadata']['namespace']}/pods"
        try:
            await self._api.create(pods, driver_pod(app))
        except ApiError as error:
            # Ours from a pass before: the watch brings it.
            if not error.conflict:
                raise


def driver_pod(app: Json) -> Json:
    """Return the driver pod: spark-submit in local mode, so the executors are threads of it."""
    metadata, spec, driver = app["metadata"], app["spec"], app["spec"].get("driver", {})
    env = [
        {"name": "SPARK_LOCAL_IP", "value": "127.0.0.1"},
        {"name": "SPARK_LOCAL_DIRS", "value": _SPARK_LOCAL},
        # Of the process that only writes the driver's command line.
        {"name": "SPARK_LAUNCHER_OPTS", "value": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        {"name": "SPARK_APPLICATION_ID", "value": app["status"]["sparkApplicationId"]},
        *({"name": k, "value": v} for k, v in sorted(driver.get("envVars", {}).items())),
        *driver.get("env", []),
    ]
    container = {
        "name": "spark-kubernetes-driver",
        "image": driver.get("image") or spec.get("image") or "rezone-local",
        "command": [*_GIVE_WAY, *submit_command(app)],
        "env": env,
        "envFrom": driver.get("envFrom", []),
        "volumeMounts": [
            *(each for each in driver.get("volumeMounts", []) if each["mountPath"] != _TMP),
            {"name": "spark-local-dir", "mountPath": _SPARK_LOCAL},
        ],
    }
    pod_spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _DRIVER_GRACE_SECONDS,
        "serviceAccountName": driver.get("serviceAccount") or "default",
        "containers": [container],
        "volumes": [*spec.get("volumes", []), {"name": "spark-local-dir", "emptyDir": {}}],
        **{
            key: driver[key] for key in ("nodeSelector", "tolerations", "affinity") if key in driver
        },
    }
    labels = {
        **driver.get("labels", {}),
        LAUNCHED_LABEL: "true",
        APP_LABEL: metadata["name"],
        SUBMISSION_LABEL: app["status"]["submissionID"],
        "spark-role": "driver",
        "spark-app-selector": app["status"]["sparkApplicationId"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": driver_name(app),
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": driver.get("annotations", {}),
            "ownerReferences": [owner_of(app)],
        },
        "spec": pod_spec,
    }


def submit_command(app: Json) -> list[str]:
    """Return the spark-submit command line.

    Jobs give way to everything else: in a cluster they have cores of their own, here they share
    them with the data nodes that serve.
    """
    spec, driver = app["spec"], app["spec"].get("driver", {})
    conf = {"spark.ui.enabled": "false", **spec.get("sparkConf", {})}
    conf |= {f"spark.hadoop.{key}": value for key, value in spec.get("hadoopConf", {}).items()}
    master = conf.pop("spark.master", DEFAULT_MASTER)
    words = ["spark-submit", "--master", master, "--name", app["metadata"]["name"]]
    if "memory" in driver:
        words += ["--driver-memory", str(driver["memory"])]
    if "mainClass" in spec:
        words += ["--class", spec["mainClass"]]
    deps = spec.get("deps", {})
    for option, key in (("--py-files", "pyFiles"), ("--jars", "jars"), ("--files", "files")):
        if deps.get(key):
            words += [option, ",".join(local_file(item) for item in deps[key])]
    for key, value in sorted(conf.items()):
        words += ["--conf", f"{key}={value}"]
    return [*words, local_file(spec["mainApplicationFile"]), *spec.get("arguments", [])]


def local_file(url: str) -> str:
    """Return where a file of the image lies here; this project's own are the installed ones."""
    path = url.removeprefix("local://").removeprefix("file://")
    if path.startswith(_IMAGE_ROOT):
        return str(Path(rezone.__path__[0]) / path.removeprefix(_IMAGE_ROOT))
    return path
