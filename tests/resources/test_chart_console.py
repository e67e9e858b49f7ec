"""The console of the chart: it has no rights, and only its proxy reaches it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from test_chart import CONSOLE, chart, of_kind

from rezone.cli.console import console

pytestmark = pytest.mark.proves("OB-03")

Json = dict[str, Any]


def deployed(helm: str, *values: str) -> tuple[list[Json], Json]:
    """Return all that the chart renders with a console, and the console's pod."""
    documents = chart(helm, *CONSOLE, *values)
    (deployment,) = of_kind(documents, "Deployment", "-console")
    return documents, deployment["spec"]["template"]


def test_there_is_no_console_that_nobody_asked_for(helm: str) -> None:
    """A web page would be there that its owner does not know of."""
    assert "console" not in json.dumps([d["metadata"] for d in chart(helm)])


def test_the_console_has_no_rights_and_no_token(helm: str) -> None:
    """Who breaks into it would have the rights of its account, over all users' zones."""
    documents, pod = deployed(helm)
    spec = pod["spec"]
    (account,) = of_kind(documents, "ServiceAccount", "-console")
    assert account["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    bound = [
        subject["name"]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for binding in of_kind(documents, kind)
        for subject in binding["subjects"]
    ]
    assert bound
    assert account["metadata"]["name"] not in bound
    assert "secret" not in json.dumps(spec["volumes"]).lower()
    assert "projected" not in json.dumps(spec["volumes"])
    for container in spec["containers"]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_what_is_set_of_the_proxy_wins_where_it_is_false(helm: str) -> None:
    """A proxy that writes to its own disk would end, with values that allow it."""
    context = "console.proxy.securityContext"
    given = ("readOnlyRootFilesystem=false", "runAsUser=65532", "capabilities.add[0]=NET_RAW")
    _, pod = deployed(helm, *(f"{context}.{each}" for each in given), "console.proxy.name=other")
    (proxy,) = [c for c in pod["spec"]["containers"] if c["name"] == "proxy"]
    assert proxy["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": False,
        "capabilities": {"add": ["NET_RAW"], "drop": ["ALL"]},
        "runAsUser": 65532,
    }
    assert proxy["image"] == "proxy:1"


def test_the_command_is_one_that_the_console_takes(helm: str) -> None:
    """The pod would not start, or listen where the network reaches it without the proxy."""
    _, pod = deployed(helm, "console.namespace=shop")
    found = next(c for c in pod["spec"]["containers"] if c["name"] == "console")
    assert found["command"] == ["rezone", "console"]
    words = [re.sub(r"\$\(POD_IP\)", "10.0.0.1", word) for word in found["args"]]
    context = console.make_context("console", words)
    assert context.params["origin"] == "https://rezone.example.com"
    assert context.params["namespace"] == "shop"
    (mount,) = [m for m in found["volumeMounts"] if m["name"] == "api"]
    assert str(context.params["api_ca"]) == f"{mount['mountPath']}/ca.crt"
    port = int(context.params["health_address"].rpartition(":")[2])
    # Not the console's own port: that is on the pod's loopback.
    assert found["ports"] == [{"name": "health", "containerPort": port}]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert found[probe]["httpGet"] == {"path": "/healthz", "port": "health"}


def test_the_network_reaches_the_proxy_alone(helm: str) -> None:
    """Tokens pass between proxy and console in the clear: within the pod."""
    documents, pod = deployed(
        helm,
        "networkPolicy.enabled=true",
        "console.egress[0].ports[0].port=9443",
    )
    labels = pod["metadata"]["labels"]
    (service,) = of_kind(documents, "Service", "-console")
    assert service["spec"]["selector"].items() <= labels.items()
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["proxy"]
    (policy,) = of_kind(documents, "NetworkPolicy", "-console")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    (ingress,) = policy["spec"]["ingress"]
    assert [port["port"] for port in ingress["ports"]] == ["proxy"]
    out = [port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", ())]
    assert out == [53, 53, 443, 6443, 9443]
    # Neither the operator's Service nor its policy takes the console in.
    (operator,) = of_kind(documents, "NetworkPolicy", "-operator")
    assert not operator["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
