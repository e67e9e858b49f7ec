"""From a SparkApplication to spark-submit's words and the templates of its pods; no I/O.

What spark-submit has an option for goes by that option, as kubeflow's spark-operator does it; what
that operator adds to pods by its webhook (volumes, tolerations, owner, security) goes by templates
of the pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rezone.local.sparkapplication import (
    APP_LABEL,
    LAUNCHED_LABEL,
    SUBMISSION_LABEL,
    driver_name,
    owner_of,
)

Json = dict[str, Any]
Conf = dict[str, str]

DRIVER_CONTAINER = "spark-kubernetes-driver"
EXECUTOR_CONTAINER = "spark-kubernetes-executor"
# Field of a pod's part of the specification -> Spark's setting below spark.<role>.
_PLAIN = {
    "cores": "cores",
    "memory": "memory",
    "memoryOverhead": "memoryOverhead",
    "javaOptions": "extraJavaOptions",
}
# The same, below spark.kubernetes.<role>.
_KUBERNETES = {
    "coreRequest": "request.cores",
    "coreLimit": "limit.cores",
    "image": "container.image",
}
_VARIABLES = {"driver": "spark.kubernetes.driverEnv", "executor": "spark.executorEnv"}
_DEPENDENCIES = {"jars": "--jars", "pyFiles": "--py-files", "files": "--files"}
_POD_FIELDS = ("tolerations", "affinity", "priorityClassName", "terminationGracePeriodSeconds")


@dataclass(frozen=True)
class Submission:
    """What spark-submit is told: words without those that name the two templates, and these."""

    words: tuple[str, ...]
    driver_template: Json
    executor_template: Json


def submission_of(app: Json, master: str) -> Submission:
    """Return how `app`, whose status names this submission, is given to `master`."""
    spec, name = app["spec"], app["metadata"]["name"]
    words = ["--master", master, "--deploy-mode", "cluster", "--name", name]
    if "mainClass" in spec:
        words += ["--class", spec["mainClass"]]
    for key, option in _DEPENDENCIES.items():
        if spec.get("deps", {}).get(key):
            words += [option, ",".join(spec["deps"][key])]
    for key, value in sorted(settings_of(app).items()):
        words += ["--conf", f"{key}={value}"]
    words += [spec["mainApplicationFile"], *spec.get("arguments", [])]
    return Submission(
        words=tuple(words),
        driver_template=_template(app, "driver", DRIVER_CONTAINER),
        executor_template=_template(app, "executor", EXECUTOR_CONTAINER),
    )


def settings_of(app: Json) -> Conf:
    """Return Spark's settings: what the application's fields mean, then its own sparkConf."""
    spec, metadata = app["spec"], app["metadata"]
    found: Conf = {
        "spark.kubernetes.namespace": metadata["namespace"],
        "spark.kubernetes.driver.pod.name": driver_name(app),
        # The state is kept from the pods' states; this process has others to look after.
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.executor.instances": str(spec["executor"].get("instances", 1)),
    }
    for key, setting in (
        ("image", "spark.kubernetes.container.image"),
        ("imagePullPolicy", "spark.kubernetes.container.image.pullPolicy"),
    ):
        if spec.get(key):
            found[setting] = spec[key]
    if spec.get("imagePullSecrets"):
        found["spark.kubernetes.container.image.pullSecrets"] = ",".join(spec["imagePullSecrets"])
    for role in ("driver", "executor"):
        found |= _role_settings(app, role)
    found |= {f"spark.hadoop.{key}": value for key, value in spec.get("hadoopConf", {}).items()}
    found |= spec.get("sparkConf", {})
    return found


def _role_settings(app: Json, role: str) -> Conf:
    spec, part, kubernetes = app["spec"], app["spec"][role], f"spark.kubernetes.{role}"
    fields = {key: f"spark.{role}.{setting}" for key, setting in _PLAIN.items()}
    fields |= {key: f"{kubernetes}.{setting}" for key, setting in _KUBERNETES.items()}
    fields["serviceAccount"] = f"spark.kubernetes.authenticate.{role}.serviceAccountName"
    selectors = spec.get("nodeSelector", {})
    groups = {
        f"{kubernetes}.label": {
            **app["metadata"].get("labels", {}),
            **part.get("labels", {}),
            LAUNCHED_LABEL: "true",
            APP_LABEL: app["metadata"]["name"],
            SUBMISSION_LABEL: app["status"]["submissionID"],
        },
        f"{kubernetes}.annotation": part.get("annotations", {}),
        f"{kubernetes}.node.selector": {**selectors, **part.get("nodeSelector", {})},
        f"{kubernetes}.secrets": {each["name"]: each["path"] for each in part.get("secrets", [])},
        _VARIABLES[role]: part.get("envVars", {}),
    }
    found = {setting: str(part[key]) for key, setting in fields.items() if key in part}
    for prefix, values in groups.items():
        found |= {f"{prefix}.{key}": str(value) for key, value in values.items()}
    return found


def _template(app: Json, role: str, container_name: str) -> Json:
    """Return the pod's template: the application's own, with what a webhook would add."""
    part = app["spec"][role]
    own: Json = part.get("template", {})
    pod: Json = {**own.get("spec", {}), **{key: part[key] for key in _POD_FIELDS if key in part}}
    containers = [each for each in pod.get("containers", []) if each["name"] != container_name]
    named = [each for each in pod.get("containers", []) if each["name"] == container_name]
    container: Json = named[0] if named else {"name": container_name}
    configs = part.get("configMaps", [])
    added: Json = {
        "env": [*container.get("env", []), *part.get("env", [])],
        "envFrom": [*container.get("envFrom", []), *part.get("envFrom", [])],
        "volumeMounts": [
            *container.get("volumeMounts", []),
            *part.get("volumeMounts", []),
            *({"name": f"{each['name']}-vol", "mountPath": each["path"]} for each in configs),
        ],
    }
    if "securityContext" in part:
        added["securityContext"] = part["securityContext"]
    mounted = {each["name"] for each in added["volumeMounts"]}
    volumes = [each for each in app["spec"].get("volumes", []) if each["name"] in mounted]
    volumes += [{"name": f"{c['name']}-vol", "configMap": {"name": c["name"]}} for c in configs]
    pod["volumes"] = [*pod.get("volumes", []), *volumes]
    pod["containers"] = [{**container, **added}, *containers]
    if "podSecurityContext" in part:
        pod["securityContext"] = part["podSecurityContext"]
    metadata: Json = dict(own.get("metadata", {}))
    if role == "driver":
        # Executors belong to their driver by Spark's own doing.
        metadata["ownerReferences"] = [owner_of(app)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
