"""What the tests of the resources talk to the API server with."""

from __future__ import annotations

import copy
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource

from rezone.resources import GROUP, VERSION
from rezone.resources.crd import KINDS, crd_meta

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

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kinds = {
            crd_meta(kind).kind: create_namespaced_resource(
                GROUP, VERSION, crd_meta(kind).kind, crd_meta(kind).plural
            )
            for kind in KINDS
        }

    def try_create(self, body: dict[str, Any]) -> str:
        """Return the server's complaint about a new object, empty if it takes it."""
        return self._said(lambda: self._client.create(self._object(body), dry_run=True))

    def try_replace(self, before: dict[str, Any], after: dict[str, Any]) -> str:
        """Return the server's complaint about a change of an object, empty if it takes it."""
        stored = self.create(before)
        try:
            changed = copy.deepcopy(after)
            changed["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
            changed.setdefault("status", {})
            return self._said(
                lambda: self._client.replace(
                    self._object(changed), changed["metadata"]["name"], dry_run=True
                )
            )
        finally:
            self.delete(before)

    def try_status(self, stored: dict[str, Any], status: dict[str, Any]) -> str:
        """Return the server's complaint about a status, empty if it takes it."""
        resource = self._kinds[stored["kind"]]
        body = resource.Status.from_dict({**stored, "status": status})
        name = stored["metadata"]["name"]
        return self._said(lambda: self._client.replace(body, name, dry_run=True))

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Store an object."""
        return dict(self._client.create(self._object(body)).to_dict())

    def delete(self, body: dict[str, Any]) -> None:
        """Delete a stored object."""
        resource = self._kinds[body["kind"]]
        self._client.delete(resource, body["metadata"]["name"], namespace=NAMESPACE)

    def _object(self, body: dict[str, Any]) -> Any:
        return self._kinds[body["kind"]].from_dict(copy.deepcopy(body))

    def _said(self, call: Any) -> str:
        try:
            call()
        except ApiError as error:
            return str(error.status.message)
        return ""
