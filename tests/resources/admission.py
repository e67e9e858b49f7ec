"""The chart's admission policies on the tests' API server, for one namespace of a test alone."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import yaml
from resource_server import REPOSITORY, Kubectl

Json = dict[str, Any]
WAIT_SECONDS = 60.0
RELEASE_NAMESPACE = "policies-home"


def rendered(helm: str, template: str, *values: str) -> list[Json]:
    """Return the objects of one template of the chart."""
    command = [helm, "template", "rezone", str(REPOSITORY / "charts" / "rezone")]
    command += [f"--namespace={RELEASE_NAMESPACE}", "--kube-version=v1.34.0"]
    command += [f"--show-only=templates/{template}", *(f"--set={value}" for value in values)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return list(yaml.safe_load_all(done.stdout))


def refusal(kubectl: Kubectl, body: Json, *options: str) -> str:
    """Try to create an object; return the API server's refusal, "" if it would take it."""
    words = ("create", "--dry-run=server", "--validate=false", "--filename=-", *options)
    done = kubectl.run(*words, stdin=json.dumps(body))
    return done.stderr if done.returncode else ""


def enforce(
    kubectl: Kubectl, policies: Sequence[Json], label: str, refused: Sequence[Json]
) -> None:
    """Have the API server follow policies in the namespaces with a label.

    Returns when it refuses each of `refused`: it watches its policies, and takes a moment. Other
    tests of the session share the server, so it follows them nowhere else.
    """
    for each in policies:
        if each["kind"].endswith("Binding"):
            where = {"namespaceSelector": {"matchLabels": {label: "yes"}}}
            each["spec"]["matchResources"] = where
        kubectl("apply", "--filename=-", stdin=json.dumps(each))
    deadline = time.monotonic() + WAIT_SECONDS
    for body in refused:
        while not refusal(kubectl, body):
            assert time.monotonic() < deadline, "the policy is not followed"


def until_taken(kubectl: Kubectl, body: Json) -> None:
    """Wait until the API server would take an object: what was bound before may still be."""
    deadline = time.monotonic() + WAIT_SECONDS
    while why := refusal(kubectl, body):
        assert time.monotonic() < deadline, why


def namespace(kubectl: Kubectl, name: str, label: str) -> str:
    """Make a namespace with a label."""
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {label: "yes"}},
    }
    kubectl("apply", "--filename=-", stdin=json.dumps(body))
    return name
