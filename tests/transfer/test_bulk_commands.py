"""`rezone verify` and its like without a driver: what they ask for, and what they say then."""

import asyncio
import functools
from pathlib import Path

import pytest
from bulk_commands_kit import all_said, call, stored

from rezone.kube.client import connect
from rezone.kube.kinds import SparkApplication

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
