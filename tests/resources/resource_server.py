"""What the tests of the resources talk to the API server with."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client import ApiClient, ApiException, CustomObjectsApi

from rezone.resources import GROUP, VERSION
from rezone.resources.crd import KINDS, crd_meta

Json = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
NAMESPACE = "resources-test"


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl against the session's API server."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        """Return what kubectl prints; its complaint fails the test."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Return the ended process."""
        return subprocess.run(
            [str(self.program), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            # Its own cache of what the server knows would outlive the server.
            env={**os.environ, "KUBECACHEDIR": str(self.kubeconfig.parent / "kubectl-cache")},
        )


class Server:
    """Creates and replaces objects of the three kinds without storing them."""

    def __init__(self, client: ApiClient) -> None:
        self._objects = CustomObjectsApi(client)
        self._plurals = {crd_meta(kind).kind: crd_meta(kind).plural for kind in KINDS}

    def try_create(self, body: Json) -> str:
        """Return the server's complaint about a new object, empty if it takes it."""
        return self._said(self._objects.create_namespaced_custom_object, body, body)

    def try_replace(self, before: Json, after: Json) -> str:
        """Return the server's complaint about a change of an object, empty if it takes it."""
        stored = self.create(before)
        try:
            changed = copy.deepcopy(after)
            changed["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
            changed.setdefault("status", {})
            return self._said(self._objects.replace_namespaced_custom_object, changed, changed)
        finally:
            self.delete(before)

    def try_status(self, stored: Json, status: Json) -> str:
        """Return the server's complaint about a status, empty if it takes it."""
        replace = self._objects.replace_namespaced_custom_object_status
        return self._said(replace, stored, {**stored, "status": status})

    def create(self, body: Json) -> Json:
        """Store an object."""
        create = self._objects.create_namespaced_custom_object
        return dict(create(**self._where(body), body=copy.deepcopy(body)))

    def delete(self, body: Json) -> None:
        """Delete a stored object."""
        name = body["metadata"]["name"]
        self._objects.delete_namespaced_custom_object(**self._where(body), name=name)

    def _where(self, body: Json) -> dict[str, str]:
        plural = self._plurals[body["kind"]]
        return {"group": GROUP, "version": VERSION, "namespace": NAMESPACE, "plural": plural}

    def _said(self, call: Callable[..., Any], body: Json, sent: Json) -> str:
        where = self._where(body)
        if "replace" in call.__name__:
            where["name"] = body["metadata"]["name"]
        try:
            call(**where, body=copy.deepcopy(sent), dry_run="All")
        except ApiException as error:
            return str(json.loads(error.body)["message"])
        return ""
