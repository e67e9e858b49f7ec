"""Where the cluster's parts are kept: one directory, so that removing it removes everything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """The directories and files under one root."""

    root: Path

    @property
    def docker(self) -> Path:
        """The Docker daemon's data, state, socket and log."""
        return self.root / "docker"

    @property
    def socket(self) -> Path:
        """Where the Docker daemon listens."""
        return self.docker / "sock"

    @property
    def programs(self) -> Path:
        """Built programs, one directory per set of module versions."""
        return self.root / "programs"

    @property
    def images(self) -> Path:
        """Image archives of this project and of the cluster's own pods."""
        return self.root / "images"

    @property
    def work(self) -> Path:
        """What a build writes and removes again."""
        return self.root / "work"

    @property
    def logs(self) -> Path:
        """The output of the commands that are run."""
        return self.root / "logs"

    @property
    def kubeconfig(self) -> Path:
        """How to reach the cluster that kind made."""
        return self.root / "kubeconfig"

    def environment(self) -> dict[str, str]:
        """Return the environment in which docker, kind and kubectl mean this cluster."""
        return {
            **os.environ,
            "DOCKER_HOST": f"unix://{self.socket}",
            "KUBECONFIG": str(self.kubeconfig),
        }


def default_places() -> Places:
    """Return the root of this user: REZONE_E2E_HOME, or a directory of the user's cache."""
    chosen = os.environ.get("REZONE_E2E_HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Places(Path(chosen) if chosen else Path(cache, "rezone", "e2e"))
