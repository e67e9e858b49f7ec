"""How a container's spec becomes a command line and variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rezone.local.agent.environment import (
    ConfigError,
    build_environment,
    build_invocation,
    expand,
    field_value,
    mount_variables,
    parse_quantity,
    resource_value,
    rewrite_mounts,
)

POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "n",
        "uid": "u",
        "labels": {"a": "1"},
        "annotations": {"x/y": "z"},
    },
    "spec": {"nodeName": "worker-1"},
    "status": {"podIP": "127.64.0.9", "hostIP": "127.60.0.1"},
}
DATA = {("ConfigMap", "c"): {"k": b"v"}, ("Secret", "s"): {"pw": b"x"}}


async def lookup(kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
    """Find an object of the fake namespace."""
    assert namespace == "n"
    return DATA.get((kind, name))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)/x", "1/x"),
        ("$(NO)", "$(NO)"),
        ("$$(A)", "$(A)"),
        ("$A", "$A"),
        ("$(A)$(B)", "12"),
    ],
)
def test_expansion_is_kubernetes_own(text: str, expected: str) -> None:
    """A manifest that works in a cluster would get another command line here."""
    assert expand(text, {"A": "1", "B": "2"}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data", "/host/d"),
        ("/data/x", "/host/d/x"),
        ("--dir=/data/x", "--dir=/host/d/x"),
        ("/database", "/database"),
        ("see /data", "see /data"),
        ("/data/sub/f", "/host/s/f"),
        ("a:/data,/data/sub", "a:/host/d,/host/s"),
    ],
)
def test_mount_paths_are_rewritten(text: str, expected: str) -> None:
    """A data node would write to /data of the machine in place of its own volume."""
    mounts = {"/data": Path("/host/d"), "/data/sub/": Path("/host/s")}
    assert rewrite_mounts(text, mounts) == expected


async def test_variables_of_all_sources() -> None:
    """Each missing source is a pod that starts with a wrong configuration."""
    container = {
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "C_"}],
        "env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "URL", "value": "http://$(IP):1/$(C_k)"},
            {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "s", "key": "pw"}}},
            {
                "name": "NONE",
                "valueFrom": {"configMapKeyRef": {"name": "no", "key": "k", "optional": True}},
            },
            {
                "name": "CPU",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
            },
        ],
        "resources": {"limits": {"cpu": "250m"}},
    }
    env = await build_environment(POD, container, {"BASE": "b"}, lookup)
    assert env == {
        "BASE": "b",
        "C_k": "v",
        "IP": "127.64.0.9",
        "URL": "http://127.64.0.9:1/v",
        "PW": "x",
        "CPU": "250",
    }


async def test_missing_key_is_a_config_error() -> None:
    """A pod without its password must wait and say so, not start without it."""
    container = {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "no"}}}]}
    with pytest.raises(ConfigError, match="couldn't find key no in Secret s"):
        await build_environment(POD, container, {}, lookup)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.labels['a']", "1"),
        ("metadata.annotations['x/y']", "z"),
        ("metadata.labels", 'a="1"'),
        ("spec.nodeName", "worker-1"),
        ("status.hostIP", "127.60.0.1"),
    ],
)
def test_downward_api(path: str, expected: str) -> None:
    """The data node learns its name, node and address from here."""
    assert field_value(POD, path) == expected


def test_unknown_field_path_is_refused() -> None:
    """An empty value for a misspelt field would be found much later."""
    with pytest.raises(ConfigError):
        field_value(POD, "status.nope")


def test_command_is_required(tmp_path: Path) -> None:
    """There is no image to take the entry point from; the message must say so."""
    with pytest.raises(ConfigError, match="no command"):
        build_invocation({"args": ["x"]}, {}, {}, tmp_path)


def test_mount_variables() -> None:
    """Programs that build paths themselves find their volumes by these names only."""
    assert mount_variables({"data-0": Path("/h")}) == {"REZONE_MOUNT_DATA_0": "/h"}


@pytest.mark.parametrize(
    ("text", "expected"), [("500m", 0.5), ("2", 2), ("1Ki", 1024), ("1k", 1000), ("3Gi", 3 * 2**30)]
)
def test_quantities(text: str, expected: float) -> None:
    """A memory limit read wrongly sizes caches wrongly."""
    assert parse_quantity(text) == expected


def test_resource_value_rounds_up() -> None:
    """The downward API rounds up: half a core is one core."""
    container = {"resources": {"limits": {"cpu": "500m"}}}
    assert resource_value(container, "limits.cpu", "1") == "1"
