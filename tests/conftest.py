"""What every test gets: the guard of connections, and an API server on demand."""

from __future__ import annotations

from kubernetes_fixture import (
    apiserver,
    kube,
    kubeconfig,
    namespace,
    only_loopback,
)

__all__ = ["apiserver", "kube", "kubeconfig", "namespace", "only_loopback"]
