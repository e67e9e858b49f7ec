"""Who asked for what stands in the API server's audit log, by the chart's policy."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from resource_server import REPOSITORY

from kubernetes_fixture import check_context, establish
from rezone.local.controlplane import ControlPlane, ControlPlaneSettings
from rezone.local.tools import find_tools
from rezone.resources.crd import custom_resource_definitions

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.proves("OB-08")]

Json = dict[str, Any]
WAIT_SECONDS = 60.0
ANN = ("--as=ann", "--as-group=system:masters")
TASK = {
    "apiVersion": "rezone.dev/v1alpha1",
    "kind": "RebalanceTask",
    "metadata": {"name": "z-7"},
    "spec": {"zoneName": "z"},
}
UNCLEAN = {
    "apiVersion": "rezone.dev/v1alpha1",
    "kind": "RegionMigration",
    "metadata": {"name": "m"},
    "spec": {"zoneName": "z", "partition": 0, "uncleanElection": {"acceptDataLoss": True}},
}


class Audited:
    """An API server that writes an audit log, and what it has written."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._kubectl = str(find_tools(["kubectl"])["kubectl"])
        self._kubeconfig = kubeconfig
        self._log = log

    def kubectl(self, *arguments: str, body: Json | None = None) -> str:
        """Run kubectl in the namespace default."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self._kubeconfig}", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            input=json.dumps(body) if body is not None else None,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def acts(self) -> list[tuple[str, str, str, str]]:
        """Return user, act, name and plan of each request that the policy has noted."""
        found = []
        for line in self._log.read_text().rpartition("\n")[0].splitlines():
            event = json.loads(line)
            notes = event.get("annotations") or {}
            act = notes.get("rezone-audit/act")
            if act is not None:
                user = (event.get("impersonatedUser") or event["user"])["username"]
                plan = notes.get("rezone-audit/plan", "")
                found.append((user, act, event["objectRef"].get("name", ""), plan))
        return found

    def until(self, user: str, act: str, name: str, plan: str = "") -> None:
        """Wait until an act is in the log: the API server writes it behind its answer."""
        deadline = time.monotonic() + WAIT_SECONDS
        while (user, act, name, plan) not in self.acts():
            assert time.monotonic() < deadline, self.acts()


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    """Start an API server with an audit log, Rezone's kinds and the chart's policy."""
    place = tmp_path_factory.mktemp("audited")
    policy, log = place / "policy.yaml", place / "audit.log"
    rules = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "resources": [{"group": "rezone.dev"}]},
            {"level": "None"},
        ],
    }
    policy.write_text(yaml.safe_dump(rules))
    extra = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        "--audit-log-mode=blocking",
    )
    settings = ControlPlaneSettings(
        components=("etcd", "kube-apiserver"),
        unsafe_no_fsync=True,
        extra_arguments={"kube-apiserver": extra},
    )
    plane = ControlPlane(place / "plane", settings)
    try:
        plane.start()
        check_context(plane.kubeconfig)
        establish(plane.kubeconfig, custom_resource_definitions())
        found = Audited(plane.kubeconfig, log)
        for each in policy_of_chart():
            found.kubectl("apply", "-f", "-", body=each)
        wait_for_policy(found)
        yield found
    finally:
        plane.stop()


def policy_of_chart() -> list[Json]:
    """Return the policy and its binding as the chart makes them."""
    helm = str(find_tools(["helm"])["helm"])
    chart = str(REPOSITORY / "charts" / "rezone")
    template = ("--show-only", "templates/auditpolicy.yaml", "--set", "audit.enabled=true")
    rendered = subprocess.run(
        [helm, "template", "rezone", chart, "--kube-version", "v1.34.0", *template],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout
    return list(yaml.safe_load_all(rendered))


def wait_for_policy(audited: Audited) -> None:
    """Change a task until the API server has read the policy, which it watches."""
    probe = {**TASK, "metadata": {"name": "probe"}}
    audited.kubectl("create", "-f", "-", body=probe)
    deadline = time.monotonic() + WAIT_SECONDS
    suspend = False
    while not audited.acts():
        assert time.monotonic() < deadline, "the policy notes nothing"
        suspend = not suspend
        audited.kubectl("patch", "rbt", "probe", "--type=merge", "-p", spec(suspend=suspend))


def spec(**fields: Any) -> str:
    """Return a patch of a spec."""
    return json.dumps({"spec": fields})


def test_each_act_of_a_person_is_noted_with_their_name(audited: Audited) -> None:
    """After an accident nobody could say who had approved it, or given rows up."""

    def patch(**fields: Any) -> None:
        audited.kubectl("patch", "rbt", "z-7", "--type=merge", "-p", spec(**fields), *ANN)

    audited.kubectl("create", "-f", "-", *ANN, body=TASK)
    patch(approvedPlan="abc")
    patch(suspend=True)
    patch(suspend=False)
    patch(cancel=True)
    audited.kubectl("label", "rbt", "z-7", "a=b", *ANN)
    status = json.dumps({"status": {"state": "Cancelled"}})
    arguments = ("--subresource=status", "--type=merge", "-p", status)
    audited.kubectl("patch", "rbt", "z-7", *arguments, *ANN)
    audited.kubectl("delete", "rbt", "z-7", "--wait=false", *ANN)
    audited.kubectl("create", "-f", "-", *ANN, body=UNCLEAN)
    audited.until("ann", "unclean-election", "m")
    named = [(act, plan) for user, act, name, plan in audited.acts() if name in {"z-7", "", "m"}]
    own = [each for each in named if each[0] != "create"]
    assert own == [
        ("approve", "abc"),
        ("suspend", ""),
        ("resume", ""),
        ("cancel", ""),
        ("delete", ""),
        ("unclean-election", ""),
    ]
    assert ("ann", "create", "z-7", "") in audited.acts()
