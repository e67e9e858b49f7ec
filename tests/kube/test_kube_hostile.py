"""Custom resources that the API server stores and that nobody means well by."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kube_helpers import stored_zone

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import InvalidTemplateError
from rezone.kube.nodes.data_node import PodSettings, build_pod
from rezone.kube.stored.store import StatusStore
from rezone.local.tools import find_tools
from rezone.resources.zone import DistributionZone

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]


def raw(kubeconfig: Path, *words: str, body: str = "") -> str:
    """Have kubectl send a request as it is; return the API server's refusal, "" for none."""
    kubectl = str(find_tools(["kubectl"])["kubectl"])
    done = subprocess.run(
        [kubectl, f"--kubeconfig={kubeconfig}", *words],
        input=body.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stderr.decode() if done.returncode else ""


def zones_path(namespace: str) -> str:
    """Return where the API server has the zones of a namespace."""
    return f"/apis/rezone.dev/v1alpha1/namespaces/{namespace}/distributionzones"


def create_raw(kubeconfig: Path, namespace: str, body: str) -> str:
    """Create a zone of this JSON; return the API server's refusal, "" when it has stored it."""
    return raw(kubeconfig, "create", "--raw", zones_path(namespace), "--filename=-", body=body)


def body_of(name: str, **spec: Any) -> dict[str, Any]:
    """Return a zone as a person would write it."""
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": name},
        "spec": {"partitions": 8, "replicas": 3, "dataNodes": {"count": 3}, **spec},
    }


@pytest.mark.parametrize("levels", [900, 9_990, 10_001])
async def test_a_deep_template_leaves_the_others_readable(
    api: Kube, crds: Path, namespace: str, levels: int
) -> None:
    """One zone would end every list of zones, and all that is decided by one."""
    await stored_zone(api, namespace)
    body = body_of("deep", dataNodes={"count": 3, "podTemplate": {"spec": "HERE"}})
    deep = '{"x":' * levels + "1" + "}" * levels
    refusal = create_raw(crds, namespace, json.dumps(body).replace('"HERE"', deep))
    assert ("exceeded max depth" in refusal) == (levels > 10_000), refusal[:300]
    zones = await StatusStore(api).list(DistributionZone, namespace)
    assert "orders" in {zone.metadata.name for zone in zones}
    if not refusal:
        found = await StatusStore(api).read(DistributionZone, namespace, "deep")
        with pytest.raises(InvalidTemplateError, match="levels deep"):
            build_pod(found, 0, PodSettings(image="i"))
        # kubectl reads no list that has it, of any namespace: other tests would fail.
        assert raw(crds, "delete", "--raw", f"{zones_path(namespace)}/deep") == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {"name": "z" * 253}}, "at most 40 characters"),
        ({"metadata": {"name": "z" * 254}}, "no more than 253"),
        ({"metadata": {"name": "zo.ne"}}, "lower-case letters, digits and"),
        ({"metadata": {"name": "zön\u0435"}}, "RFC 1123"),
        (
            {"spec": {"partitions": 16_384, "replicas": 7, "dataNodes": {"count": 7}}},
            "at most 49152",
        ),
        ({"spec": {"partitions": 1 << 40, "replicas": 1, "dataNodes": {"count": 1}}}, "16384"),
        (
            {"spec": {"partitions": 1, "replicas": 1, "dataNodes": {"nodeSelector": {"é": "x"}}}},
            "valid Kubernetes labels",
        ),
        (
            {
                "spec": {
                    "partitions": 1,
                    "replicas": 1,
                    "dataNodes": {"count": 1, "podTemplate": {"spec": {"x": "y" * 2_000_000}}},
                }
            },
            "too large",
        ),
    ],
)
async def test_what_has_no_room_is_refused_with_a_reason(
    crds: Path, namespace: str, change: dict[str, Any], said: str
) -> None:
    """Pods, Services or the status would fail later, and say less."""
    refusal = create_raw(crds, namespace, json.dumps(body_of("zone") | change))
    assert said in refusal, refusal[:300]


async def test_text_of_any_script_comes_back_as_it_was(
    api: Kube, crds: Path, namespace: str
) -> None:
    """A zone whose annotations are not ASCII would end the lists of all."""
    strange = "\u202e\x00\U0001f600\x7f"
    body = body_of("strange")
    body["metadata"]["annotations"] = {"note": strange}
    template = {"metadata": {"annotations": {strange: strange}}}
    body["spec"]["dataNodes"]["podTemplate"] = template
    assert create_raw(crds, namespace, json.dumps(body)) == ""
    (zone,) = await StatusStore(api).list(DistributionZone, namespace)
    assert zone.metadata.name == "strange"
    pod = build_pod(zone, 0, PodSettings(image="i"))
    assert strange in pod["metadata"]["annotations"]
