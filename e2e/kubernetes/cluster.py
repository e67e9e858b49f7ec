"""The cluster under test, as the suite's cases see it: kubectl, helm, and what they wait for."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.kind.command import CommandError, run, say

CONTEXTS = "REZONE_E2E_CONTEXTS"
KEEP = "REZONE_E2E_KEEP"
_POLL_SECONDS = 0.5

Json = dict[str, Any]


class NotInTimeError(AssertionError):
    """Something that the suite waits for did not come; the message has what was seen last."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that may be broken; `nodes` is None where its machines cannot be reached."""

    kubectl_path: Path
    helm_path: Path
    env: Mapping[str, str]
    nodes: Nodes | None

    def kubectl(self, *arguments: str, text: str | None = None, seconds: float = 120.0) -> str:
        """Run kubectl; CommandError when it fails."""
        return run(
            [str(self.kubectl_path), *arguments], env=self.env, text=text, timeout_seconds=seconds
        )

    def helm(self, *arguments: str, seconds: float = 300.0) -> str:
        """Run helm; CommandError when it fails."""
        return run([str(self.helm_path), *arguments], env=self.env, timeout_seconds=seconds)

    def get(self, *arguments: str) -> Json:
        """Return what `kubectl get` finds, as it is stored."""
        found: Json = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return found

    def items(self, *arguments: str) -> list[Json]:
        """Return the objects of a list."""
        found: list[Json] = self.get(*arguments)["items"]
        return found

    def apply(self, *objects: Json) -> None:
        """Apply objects, as their owner would."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "--server-side", "--filename=-", text=text)

    def until(
        self, what: str, holds: Callable[[], bool], *, seconds: float, seen: Callable[[], str]
    ) -> float:
        """Wait until something holds and return the seconds that it took.

        Errors of kubectl meanwhile count as "not yet". Raises NotInTimeError.
        """
        started = time.monotonic()
        error = ""
        while time.monotonic() < started + seconds:
            try:
                if holds():
                    return time.monotonic() - started
                error = ""
            except CommandError as caught:
                error = str(caught)
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(CommandError):
            error += seen()
        raise NotInTimeError(f"{what}: not within {seconds:.0f} s; {error}")


@dataclass(frozen=True)
class Nodes:
    """The machines of a kind cluster: containers that can be entered, stopped and started."""

    env: Mapping[str, str]

    def execute(self, node: str, *command: str) -> str:
        """Run a command on a node, as its root."""
        return run(["docker", "exec", node, *command], env=self.env)

    def kill(self, node: str) -> None:
        """Take a node's power away."""
        run(["docker", "kill", node], env=self.env)

    def start(self, node: str) -> None:
        """Give a node its power back."""
        run(["docker", "start", node], env=self.env)

    @contextlib.contextmanager
    def without_kubelet(self, node: str) -> Iterator[None]:
        """Stop a node's kubelet for a while; its containers run on."""
        self.execute(node, "systemctl", "stop", "kubelet")
        try:
            yield
        finally:
            self.execute(node, "systemctl", "start", "kubelet")


def allowed_context(kubectl: Path) -> str | None:
    """Return the context of KUBECONFIG if the person allowed the suite to break its cluster."""
    allowed = [name for name in os.environ.get(CONTEXTS, "").split(",") if name]
    if not allowed:
        return None
    current = run([kubectl, "config", "current-context"]).strip()
    if current not in allowed:
        say(f"context {current!r} is not in {CONTEXTS}: a cluster of our own is made")
        return None
    return current
