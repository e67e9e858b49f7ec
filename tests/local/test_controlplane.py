"""The control plane itself: it starts, keeps its promises about state, and ends completely."""

from __future__ import annotations

from pathlib import Path

import pytest

from rezone.local.api import KubeApi
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.local.errors import StartError

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]


async def test_namespace_fixture_is_fresh(kube: KubeApi, namespace: str) -> None:
    """With reused namespaces every other apiserver test would lie."""
    found = await kube.get(f"/api/v1/namespaces/{namespace}")
    assert found["status"]["phase"] == "Active"


def test_failing_part_shows_its_log(tmp_path: Path) -> None:
    """A start that hangs or hides the reason leaves the person with nothing to do."""
    settings = ControlPlaneSettings(
        components=("etcd", "kube-apiserver"),
        unsafe_no_fsync=True,
        extra_arguments={"kube-apiserver": ("--no-such-flag",)},
    )
    plane = ControlPlane(tmp_path, settings)
    try:
        with pytest.raises(StartError, match="no-such-flag"):
            plane.start()
    finally:
        plane.stop(delete=True)
