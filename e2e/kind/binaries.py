"""The programs of the cluster, each built once from its Go module.

The control plane and kubectl are those of the one-machine cluster (`rezone.local.tools`); what only
a real node needs is built from the modules under `go/`.
"""

from __future__ import annotations

import os
from pathlib import Path

from e2e.gomodules import STRIPPED, GoModule
from e2e.kind.command import say
from e2e.kind.places import Places
from rezone.local.tools import build_tools, kubernetes_linker_flags

MODULES = Path(__file__).with_name("go")
_CONTROL_PLANE = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "helm",
)
# Program -> (directory of its module, package).
_PROGRAMS = {
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kubeadm": ("kubernetes", "k8s.io/kubernetes/cmd/kubeadm"),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "coredns": ("coredns", "."),
    # Never in one command with Kubernetes: the two spell one of their dependencies differently.
    "local-path-provisioner": ("localpath", "github.com/rancher/local-path-provisioner"),
    "pause": ("pause", "."),
    "kind": ("kind", "sigs.k8s.io/kind"),
}


def build_programs(places: Places) -> dict[str, Path]:
    """Return the path of each program, built now if it is not there.

    Raises MissingToolError without a usable Go, LocalError if a build fails.
    """
    found = build_tools(_CONTROL_PLANE, os.environ, say)
    for name, (module, package) in _PROGRAMS.items():
        flags = kubernetes_linker_flags() if module == "kubernetes" else STRIPPED
        found[name] = GoModule(MODULES / module).program(name, package, places, flags)
    return found


def kind_files() -> Path:
    """Return the directory of the files that kind puts into its own node images."""
    return GoModule(MODULES / "kind").sources_of("sigs.k8s.io/kind") / "images" / "base" / "files"
