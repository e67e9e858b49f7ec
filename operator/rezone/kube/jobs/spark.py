"""SparkApplications (sparkoperator.k8s.io/v1beta2) that carry a rebalance task's bulk data.

One application per task copies all its partitions. The plan says what goes where; it travels as
an argument, because a driver without volumes (the local runner's) can read that too, and only a
plan too long for one argument goes into a ConfigMap. The application never retries by itself:
the task's machine decides that, and an attempt goes on where the receivers stand.

Concurrency: stateless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rezone.domain.access.template_policy import TemplatePolicy
from rezone.domain.model.world import SparkView
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ExistsError,
    ForeignObjectError,
    InvalidTemplateError,
    MissingError,
)
from rezone.kube.api.kinds import ConfigMap, Kind, Manifest, SparkApplication
from rezone.kube.api.names import (
    COMPONENT_LABEL,
    DATA_NODE,
    OWNER_LABEL,
    TRANSFER,
    ZONE_LABEL,
    is_owned,
    label_value,
    labels_of,
    owner_reference,
    require_owned,
)
from rezone.kube.nodes.data_node import TLS_PATH
from rezone.kube.nodes.template import SPARK_POLICY, merge
from rezone.kube.tls.certificates import secret_name
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.wire.copying import backfill_plan
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.backfill_plan import BackfillPlan
from rezone.wire.copying.plan import PartitionCopy
from rezone.wire.transport.identity import Role
from rezone.wire.transport.tls import DIRECTORY_VARIABLE
from rezone.wire.typed import from_builtins

PLAN_DIRECTORY = "/etc/rezone/plan"
PLAN_FILE = "plan.json"
# The kernel takes 128 KiB per argument (MAX_ARG_STRLEN).
INLINE_PLAN_BYTES_MAX = 96 << 10

# Rows pass through Python alone, so Java only has to start: a third less processor time.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_TMP = "tmp"

Owner = RebalanceTask | RegionMigration | DistributionZone
"""Who may need large copies: a zone repairs what it has lost."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """How this installation runs Spark."""

    image: str
    image_pull_policy: str = "IfNotPresent"
    # That of the lock file, which the image has; the spark-operator goes by it.
    spark_version: str = "4.3.0"
    main_file: str = "local:///opt/rezone/transfer/copy_job.py"
    backfill_file: str = "local:///opt/rezone/transfer/backfill_job.py"
    service_account: str = "rezone-spark"
    driver_cores: int = 1
    driver_memory: str = "1g"
    executor_cores: int = 2
    executor_memory: str = "2g"
    executor_instances: int = 2
    time_to_live_seconds: int = 3600
    # A task goes on where its receivers stand, so many failures of one task are still progress.
    task_failures_max: int = 8
    tls: bool = False
    template_policy: TemplatePolicy = SPARK_POLICY
    conf: dict[str, str] = field(default_factory=dict)


def plan_config_name(application: str) -> str:
    """Return the name of the ConfigMap of a plan that is too long for an argument."""
    return f"{application}-plan"


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """What an application runs: a file of the image with arguments.

    `conf` goes over that of the settings; `driver`, `executor` and `both` are merged into the parts
    of the roles, `spec` into the whole. The zone's template comes after them.
    """

    main_file: str
    arguments: Sequence[str]
    tls_secret: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    driver: Manifest = field(default_factory=dict)
    executor: Manifest = field(default_factory=dict)
    both: Manifest = field(default_factory=dict)
    spec: Manifest = field(default_factory=dict)


def build_application(
    name: str,
    zone: DistributionZone,
    owner: Owner,
    plan: str,
    settings: SparkSettings,
    *,
    main_file: str = "",
) -> Manifest:
    """Return the SparkApplication `name` that carries out a plan for `owner`.

    `plan` is the text of `wire.copyplan.dumps`; with another `main_file` than that of copies the
    text of that one's plan. Raises InvalidTemplateError.
    """
    driver: Manifest = {}
    if len(plan) <= INLINE_PLAN_BYTES_MAX:
        arguments = ["--plan-json", plan]
    else:
        arguments = ["--plan", f"{PLAN_DIRECTORY}/{PLAN_FILE}"]
        driver = {"configMaps": [{"name": plan_config_name(name), "path": PLAN_DIRECTORY}]}
    job = SparkJob(
        main_file=main_file or settings.main_file,
        arguments=arguments,
        driver=driver,
        tls_secret=secret_name(zone.metadata.name, Role.TRANSFER) if settings.tls else "",
    )
    return build_job(name, zone, owner, job, settings)


def build_job(
    name: str,
    zone: DistributionZone,
    owner: Owner,
    job: SparkJob,
    settings: SparkSettings,
) -> Manifest:
    """Return the SparkApplication `name` of a job, the zone's template merged into its spec.

    Raises InvalidTemplateError.
    """
    wanted = zone.spec.transfer.spark_template
    if fault := settings.template_policy.fault(wanted):
        raise InvalidTemplateError(f"spec.transfer.sparkTemplate: {fault}")
    labels = _labels(zone, owner)
    driver: Manifest = {
        "cores": settings.driver_cores,
        "memory": settings.driver_memory,
        "serviceAccount": settings.service_account,
        "labels": labels,
        **_confined(),
    }
    executor: Manifest = {
        "cores": settings.executor_cores,
        "memory": settings.executor_memory,
        "instances": settings.executor_instances,
        "labels": labels,
        "affinity": _near(zone.metadata.name),
        **_confined(),
    }
    spec: Manifest = {
        "type": "Python",
        "mode": "cluster",
        "pythonVersion": "3",
        "sparkVersion": settings.spark_version,
        "image": settings.image,
        "imagePullPolicy": settings.image_pull_policy,
        "mainApplicationFile": job.main_file,
        "arguments": list(job.arguments),
        "restartPolicy": {"type": "Never"},
        "timeToLiveSeconds": settings.time_to_live_seconds,
        "sparkConf": {
            "spark.task.maxFailures": str(settings.task_failures_max),
            # Nobody looks at the page of a job of seconds; progress stands in the task's status.
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.executor.extraJavaOptions": QUICK_JVM,
            **(tls_conf(job.tls_secret) if job.tls_secret else {}),
            **job.conf,
            **settings.conf,
        },
        "driver": merge(merge(driver, job.both), job.driver),
        "executor": merge(merge(executor, job.both), job.executor),
        "volumes": [{"name": _TMP, "emptyDir": {}}],
    }
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": _metadata(name, owner, labels),
        "spec": merge(merge(spec, job.spec), wanted),
    }


def _near(zone: str) -> Manifest:
    """Return the wish to run on machines that have data nodes of the zone."""
    labels = {ZONE_LABEL: zone, COMPONENT_LABEL: DATA_NODE}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    return {
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}
            ]
        }
    }


def _confined() -> Manifest:
    """Return what makes a Spark pod one that a namespace of the level "restricted" takes.

    The spark-operator's webhook puts it into the pods. No user is named: that is the image's own,
    which Java must find in the image's list of users.
    """
    return {
        "podSecurityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # Spark unpacks its libraries there; the rest of what it writes has volumes of its own.
        "volumeMounts": [{"name": _TMP, "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }


def tls_conf(secret: str) -> dict[str, str]:
    """Return the configuration by which driver and executors show the certificate of a Secret."""
    # By Spark's own settings: the spark-operator's fields for Secrets need its webhook.
    return {
        **secret_conf(secret, TLS_PATH),
        f"spark.kubernetes.driverEnv.{DIRECTORY_VARIABLE}": TLS_PATH,
        f"spark.executorEnv.{DIRECTORY_VARIABLE}": TLS_PATH,
    }


def secret_conf(secret: str, path: str) -> dict[str, str]:
    """Return the configuration by which driver and executors have a Secret as files."""
    return {
        f"spark.kubernetes.driver.secrets.{secret}": path,
        f"spark.kubernetes.executor.secrets.{secret}": path,
    }


def build_plan_config(
    name: str,
    zone: DistributionZone,
    owner: Owner,
    plan: str,
) -> Manifest | None:
    """Return the plan's ConfigMap, None when the plan goes as an argument."""
    if len(plan) <= INLINE_PLAN_BYTES_MAX:
        return None
    labels = _labels(zone, owner)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(plan_config_name(name), owner, labels),
        "immutable": True,
        "data": {PLAN_FILE: plan},
    }


def _labels(zone: DistributionZone, owner: Owner) -> dict[str, str]:
    return {
        **labels_of(zone.metadata.name, TRANSFER),
        OWNER_LABEL: label_value(owner.metadata.name),
    }


def _metadata(name: str, owner: Owner, labels: dict[str, str]) -> Manifest:
    return {
        "name": name,
        "namespace": owner.metadata.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(owner)],
    }


class SparkStore:
    """Creates, observes and deletes the SparkApplications of tasks."""

    def __init__(self, kube: Kube, settings: SparkSettings) -> None:
        self._kube = kube
        self._settings = settings

    async def ensure(
        self,
        name: str,
        zone: DistributionZone,
        owner: Owner,
        items: Sequence[PartitionCopy | dict[str, Any]],
    ) -> bool:
        """Create the application and, first, its plan; False when it was there already.

        `items` are the plan's, as `wire.copying.plan` has them or as their JSON.

        One that is there keeps the plan it was made with: another plan is another name. Raises
        ForeignObjectError, InvalidTemplateError or InvalidWriteError (the zone's sparkTemplate),
        MissingError when the Spark operator's CRD is not installed.
        """
        plan = copyplan.dumps(from_builtins(list(items), list[PartitionCopy]))
        return await self._ensure(name, zone, owner, plan)

    async def ensure_backfill(
        self, name: str, zone: DistributionZone, owner: Owner, plan: BackfillPlan
    ) -> bool:
        """Create the application that backfills a re-sharding; as `ensure`."""
        text = backfill_plan.dumps(plan)
        main_file = self._settings.backfill_file
        return await self._ensure(name, zone, owner, text, main_file=main_file)

    async def _ensure(
        self, name: str, zone: DistributionZone, owner: Owner, plan: str, *, main_file: str = ""
    ) -> bool:
        application = build_application(
            name, zone, owner, plan, self._settings, main_file=main_file
        )
        config = build_plan_config(name, zone, owner, plan)
        if config is not None:
            await self._create(ConfigMap, config, owner)
        return await self._apply(application, owner)

    async def submit(self, name: str, zone: DistributionZone, owner: Owner, job: SparkJob) -> bool:
        """Create the application of a job; errors as `ensure`."""
        return await self._apply(build_job(name, zone, owner, job, self._settings), owner)

    async def _apply(self, application: Manifest, owner: Owner) -> bool:
        try:
            return await self._create(SparkApplication, application, owner)
        except MissingError as error:
            why = (
                "SparkApplication is no kind of this cluster: the spark-operator's CRDs are missing"
            )
            raise MissingError(why) from error

    async def state(self, owner: Owner, name: str) -> SparkView:
        """Return kubeflow's application state, "" when the owner has no such application.

        One that its operator has not seen yet is "NEW". Where the name, or that of the plan's
        ConfigMap, is another's, the view says whose: that object says nothing of this owner's
        copies.
        """
        namespace = owner.metadata.namespace
        found = await self._kube.find(SparkApplication, namespace, name)
        try:
            if found is None:
                plan = await self._kube.find(ConfigMap, namespace, plan_config_name(name))
                if plan is not None:
                    require_owned(plan, owner)
                return SparkView(name=name, state="")
            require_owned(found, owner)
        except ForeignObjectError as error:
            return SparkView(name=name, state="", taken=str(error), going=error.going)
        state = (found.get("status") or {}).get("applicationState") or {}
        return SparkView(
            name=name,
            # kubeflow's own name for it is the empty string, which here means absent.
            state=state.get("state") or "NEW",
            error=state.get("errorMessage") or "",
        )

    async def delete(self, owner: Owner, name: str) -> bool:
        """Delete the owner's application and its plan; False when it has no such application."""
        deleted = await self._delete_own(SparkApplication, owner, name)
        await self._delete_own(ConfigMap, owner, plan_config_name(name))
        return deleted

    async def _delete_own(self, kind: Kind, owner: Owner, name: str) -> bool:
        namespace = owner.metadata.namespace
        found = await self._kube.find(kind, namespace, name)
        if found is None or not is_owned(found, owner):
            return False
        return await self._kube.delete(kind, namespace, name)

    async def _create(
        self,
        kind: Kind,
        manifest: Manifest,
        owner: Owner,
    ) -> bool:
        try:
            await self._kube.create(kind, manifest)
        except ExistsError:
            meta = manifest["metadata"]
            found = await self._kube.get(kind, meta["namespace"], meta["name"])
            require_owned(found, owner)
            return False
        return True
