"""A data node's settings: read from the environment, and refused where they cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from rezone.datanode.node.node import DataNode
from rezone.datanode.settings import NodeSettings


def test_settings_come_from_the_environment() -> None:
    """Leases and lag limits could not be set by whoever runs a zone."""
    settings = NodeSettings.from_environment(
        {"REZONE_NODE_LEASE_MS": "3000", "REZONE_NODE_CLOCK_DRIFT_PERCENT": "5", "HOME": "/"},
        replica_lag_ms_max=400,
    )
    assert settings == NodeSettings(lease_ms=3000, clock_drift_percent=5, replica_lag_ms_max=400)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("REZONE_NODE_LEASE", "3000", "REZONE_NODE_LEASE: a data node has no such setting"),
        ("REZONE_NODE_LEASE_MS", "3s", "lease_ms"),
        ("REZONE_NODE_LEASE_MS", "-1", "REZONE_NODE_LEASE_MS=-1: must be 0 to"),
        ("REZONE_NODE_CLOCK_DRIFT_PERCENT", "101", "must be 0 to 100"),
    ],
)
def test_a_wrong_setting_is_named(variable: str, text: str, says: str) -> None:
    """A typing error would silently leave the default in force."""
    with pytest.raises(ValueError, match=says):
        NodeSettings.from_environment({variable: text})


def test_a_protocol_that_there_is_not_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    """A node would start and then fail with a bare KeyError at its first leadership."""
    with pytest.raises(ValueError, match="'Rfat': must be one of InSyncReplicas"):
        DataNode(0, tmp_path, settings=NodeSettings(protocol="Rfat"))
