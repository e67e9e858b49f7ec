"""SparkApplications of tasks: their plan, their template, their life."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
from kube_helpers import stored_task, stored_zone, task_of, zone_of

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ForeignObjectError, MissingError
from rezone.kube.api.kinds import ConfigMap, SparkApplication
from rezone.kube.api.names import DATA_NODE, labels_of
from rezone.kube.jobs.spark import (
    INLINE_PLAN_BYTES_MAX,
    QUICK_JVM,
    SparkSettings,
    SparkStore,
    build_application,
    build_plan_config,
)
from rezone.local.api import KubeApi
from rezone.wire.copying import plan as copyplan

ROOT = Path(__file__).parents[2]
SETTINGS = SparkSettings(image="registry.example/rezone-spark:1")


def items(count: int) -> list[dict[str, Any]]:
    """Return a plan of so many partitions, in JSON form."""
    return [
        {
            "partition": p,
            "source": f"10.{p % 251}.{p % 241}.{p % 239}:7400",
            "source_id": p % 1021,
            "targets": [{"id": p % 1019, "address": f"10.9.{p % 233}.{p % 229}:7400"}],
            "revision": p * 7919,
        }
        for p in range(count)
    ]


def test_small_plan_is_an_argument_and_reads_back() -> None:
    """The local runner's driver has no volumes: a plan elsewhere would never arrive."""
    zone = zone_of()
    task = task_of(zone)
    plan = copyplan.dumps(copyplan.loads(json.dumps(items(500))))
    spec = build_application("orders-1-a1", zone, task, plan, SETTINGS)["spec"]
    flag, text = spec["arguments"]
    assert flag == "--plan-json"
    assert [copy.partition for copy in copyplan.loads(text)] == list(range(500))
    assert build_plan_config("orders-1-a1", zone, task, plan) is None
    assert "configMaps" not in spec["driver"]


@pytest.mark.proves("SP-10")
def test_executors_of_copies_prefer_machines_with_data_nodes_of_the_zone() -> None:
    """Rows would cross the network twice where once is enough."""
    zone = zone_of()
    spec = build_application("orders-1-a1", zone, task_of(zone), "[]", SETTINGS)["spec"]
    (wish,) = spec["executor"]["affinity"]["podAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert wish["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
    node = labels_of(zone.metadata.name, DATA_NODE)
    assert wish["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= node.items()
    assert "affinity" not in spec["driver"]


def test_long_plan_is_mounted() -> None:
    """The kernel refuses an argument over 128 KiB, and the driver would never start."""
    zone = zone_of()
    task = task_of(zone)
    plan = "x" * (INLINE_PLAN_BYTES_MAX + 1)
    spec = build_application("orders-1-a1", zone, task, plan, SETTINGS)["spec"]
    config = build_plan_config("orders-1-a1", zone, task, plan)
    assert config is not None
    assert spec["arguments"] == ["--plan", "/etc/rezone/plan/plan.json"]
    (mounted,) = spec["driver"]["configMaps"]
    assert mounted == {"name": config["metadata"]["name"], "path": "/etc/rezone/plan"}
    assert config["data"] == {"plan.json": plan}


def test_fixed_parts_and_template() -> None:
    """An application that retried by itself would run beside the machine's next attempt."""
    transfer = {
        "sparkTemplate": {
            "executor": {"instances": 9},
            "sparkConf": {"spark.speculation": "true"},
        },
    }
    zone = zone_of(transfer=transfer, rebalance={"maxBytesPerSecond": 1000})
    spec = build_application("a", zone, task_of(zone), "[]", SETTINGS)["spec"]
    assert (spec["type"], spec["mode"], spec["restartPolicy"]) == (
        "Python",
        "cluster",
        {"type": "Never"},
    )
    assert spec["arguments"] == ["--plan-json", "[]"]
    assert spec["executor"]["instances"] == 9
    assert spec["executor"]["memory"] == "2g"
    assert spec["sparkConf"] == {
        "spark.task.maxFailures": "8",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.speculation": "true",
    }
    assert len(spec["driver"]["labels"]["rezone.dev/owner"]) <= 63


def test_pods_are_confined() -> None:
    """Namespaces of the level "restricted" refuse pods that do not say all of this themselves."""
    zone = zone_of()
    spec = build_application("a", zone, task_of(zone), "[]", SETTINGS)["spec"]
    for role in ("driver", "executor"):
        assert spec[role]["podSecurityContext"] == {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        container = spec[role]["securityContext"]
        assert container["capabilities"] == {"drop": ["ALL"]}
        assert container["allowPrivilegeEscalation"] is False
        assert container["readOnlyRootFilesystem"] is True
        (mount,) = spec[role]["volumeMounts"]
        assert mount["name"] == "tmp"
    assert {"name": "tmp", "emptyDir": {}} in spec["volumes"]


def test_version_is_that_of_the_lock_file() -> None:
    """The spark-operator chooses by it how pods are made, and people look for bugs by it."""
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (spark,) = (package for package in locked if package["name"] == "pyspark")
    assert SETTINGS.spark_version == spark["version"]


def test_long_owner_name_still_makes_a_valid_label() -> None:
    """A task's name may be longer than a label; the application would be refused with 422."""
    zone = zone_of()
    long = task_of(zone, "a" * 62 + ".b" * 30)
    labels = build_application("a", zone, long, "[]", SETTINGS)["metadata"]["labels"]
    assert labels["rezone.dev/owner"] == "a" * 62


@pytest.mark.apiserver
@pytest.mark.slow
async def test_life_of_an_application(api: Kube, kube: KubeApi, namespace: str) -> None:
    """The task's machine decides on what is seen here."""
    zone = await stored_zone(api, namespace)
    task = await stored_task(api, zone)
    store = SparkStore(api, SETTINGS)
    assert (await store.state(task, "orders-1-a1")).state == ""
    assert await store.ensure("orders-1-a1", zone, task, items(3))
    assert not await store.ensure("orders-1-a1", zone, task, items(5))
    assert (await store.state(task, "orders-1-a1")).state == "NEW"
    stored = await api.get(SparkApplication, namespace, "orders-1-a1")
    assert len(copyplan.loads(stored["spec"]["arguments"][1])) == 3
    failed = {"applicationState": {"state": "FAILED", "errorMessage": "driver exited with 1"}}
    path = SparkApplication.path(namespace, "orders-1-a1", "status")
    await kube.patch(path, {"status": failed})
    view = await store.state(task, "orders-1-a1")
    assert (view.state, view.error) == ("FAILED", "driver exited with 1")
    assert await store.delete(task, "orders-1-a1")
    assert not await store.delete(task, "orders-1-a1")


async def test_a_cluster_without_the_kind_is_told_in_plain_words() -> None:
    """What is missing is named: the spark-operator's CRDs.

    A task would tell a person of a 404 without saying of what.
    """

    class WithoutTheKind:
        async def create(self, *_: object) -> None:
            raise MissingError("404 page not found")

    zone = zone_of()
    store = SparkStore(cast("Kube", WithoutTheKind()), SETTINGS)
    with pytest.raises(MissingError, match="the spark-operator's CRDs are missing"):
        await store.ensure("orders-1-a1", zone, task_of(zone), items(1))


@pytest.mark.apiserver
@pytest.mark.slow
async def test_largest_plan_fits_and_goes_with_the_application(api: Kube, namespace: str) -> None:
    """A zone of 16,384 partitions must be movable in one task."""
    zone = await stored_zone(api, namespace)
    task = await stored_task(api, zone)
    store = SparkStore(api, SETTINGS)
    await store.ensure("big", zone, task, items(16_384))
    config = await api.get(ConfigMap, namespace, "big-plan")
    assert len(copyplan.loads(config["data"]["plan.json"])) == 16_384
    assert len(config["data"]["plan.json"]) < 1 << 20
    await store.delete(task, "big")
    assert await api.find(ConfigMap, namespace, "big-plan") is None


@pytest.mark.apiserver
@pytest.mark.slow
async def test_foreign_application_is_refused(api: Kube, namespace: str) -> None:
    """Its state would be taken for the state of our copy."""
    zone = await stored_zone(api, namespace)
    store = SparkStore(api, SETTINGS)
    first, second = [await stored_task(api, zone, name) for name in ("first", "second")]
    await store.ensure("same", zone, first, items(1))
    with pytest.raises(ForeignObjectError):
        await store.ensure("same", zone, second, items(1))
    assert (await store.state(first, "same")).state == "NEW"
    view = await store.state(second, "same")
    assert (view.state, view.going) == ("", False)
    assert "delete or rename it" in view.taken
    assert not await store.delete(second, "same")
    assert (await store.state(first, "same")).state == "NEW"


@pytest.mark.apiserver
@pytest.mark.slow
async def test_foreign_plan_is_seen_before_there_is_an_application(
    api: Kube, namespace: str
) -> None:
    """A task whose plan cannot be stored would wait without a word, or take another's away."""
    zone = await stored_zone(api, namespace)
    task = await stored_task(api, zone)
    store = SparkStore(api, SETTINGS)
    await api.create(
        ConfigMap,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "big-plan", "namespace": namespace},
        },
    )
    assert "big-plan" in (await store.state(task, "big")).taken
    assert not await store.delete(task, "big")
    await api.delete(ConfigMap, namespace, "big-plan")
    assert await store.ensure("big", zone, task, items(16_384))
    view = await store.state(task, "big")
    assert (view.state, view.taken) == ("NEW", "")


@pytest.mark.apiserver
@pytest.mark.slow
async def test_application_of_an_earlier_task_is_on_its_way_out(api: Kube, namespace: str) -> None:
    """A person would be told to delete what the garbage collector takes away."""
    zone = await stored_zone(api, namespace)
    store = SparkStore(api, SETTINGS)
    earlier = await stored_task(api, zone)
    await store.ensure("same", zone, earlier, items(1))
    metadata = earlier.metadata.model_copy(update={"uid": "another"})
    later = earlier.model_copy(update={"metadata": metadata})
    assert (await store.state(later, "same")).going
