"""`rezone verify` and its like without a driver: what they ask for, and what they say then."""

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest
from bulk_commands_kit import all_said, applications, call, stored

from rezone.kube.api.client import connect
from rezone.kube.api.kinds import SparkApplication

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(400)]


async def set_state(kubeconfig: Path, namespace: str, name: str, state: str) -> None:
    """Write an application's state as the spark-operator does."""
    async with await connect(kubeconfig) as api:
        found = await api.get(SparkApplication, namespace, name)
        status = {"applicationState": {"state": state, "errorMessage": "driver exited with 137"}}
        await api.replace_status(SparkApplication, {**found, "status": status})


def test_a_job_without_a_result_has_failed(crds: Path, namespace: str) -> None:
    """A driver that was killed would count as a zone that was verified."""
    asyncio.run(stored(crds, namespace, "127.0.0.1:1"))
    called = functools.partial(call, crds, namespace)
    result = called("verify", "orders", "--image", "i", "--no-wait", "--tls-secret", "reader")
    assert result.returncode == 0
    name = result.stdout.strip()
    asyncio.run(set_state(crds, namespace, name, "FAILED"))
    result = called("job", name)
    assert result.returncode == 2
    assert "is FAILED: driver exited with 137; the same command goes on with it" in all_said(result)
    result = called("export", "nothing", "/x", "--image", "i")
    assert result.returncode == 2
    assert "nothing" in all_said(result)
    result = called("load", "orders", "/x", "--image", "i", "--state", "/s", "--volume", "claim")
    assert "'claim' is not CLAIM:/PATH" in all_said(result)


def test_a_load_of_a_table_names_it_and_no_password(crds: Path, namespace: str) -> None:
    """Who may see a SparkApplication would read the catalog's password there."""
    asyncio.run(stored(crds, namespace, "127.0.0.1:1"))
    common = ("--image", "i", "--state", "/s")
    called = functools.partial(call, crds, namespace, "load", "orders")
    table = ("--iceberg", "lake.shop.orders", "--snapshot", "7")
    result = called(*table, *common, "--env-secret", "lake", "--overwrite", "--no-wait")
    assert result.returncode == 0, all_said(result)
    (found,) = asyncio.run(every(crds, namespace))
    asked = found["spec"]["arguments"]
    assert asked[asked.index("--iceberg") :] == [*table, "--state", "/s", "--overwrite"]
    for each in ("driver", "executor"):
        assert found["spec"][each]["envFrom"] == [{"secretRef": {"name": "lake"}}]
    for wrong in (("/x", *table), table[2:], ("/x", *table[2:]), ("--csv", *table), ()):
        result = called(*wrong, *common)
        assert result.returncode == 2
        assert "--iceberg" in all_said(result)


async def every(kubeconfig: Path, namespace: str) -> list[dict[str, Any]]:
    """Return the SparkApplications of a namespace."""
    async with await connect(kubeconfig) as api:
        return await applications(api, namespace)
