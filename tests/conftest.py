"""What every test gets: guarded connections, an API server on demand, Hypothesis' profile."""

from __future__ import annotations

from hypothesis import settings

from kubernetes_fixture import (
    apiserver,
    crds,
    kube,
    kubeconfig,
    namespace,
    only_loopback,
)

# Of what is slow on a busy machine nothing follows; a test that hangs is ended by its timeout.
settings.register_profile("rezone", deadline=None, print_blob=True)
settings.load_profile("rezone")

__all__ = ["apiserver", "crds", "kube", "kubeconfig", "namespace", "only_loopback"]
