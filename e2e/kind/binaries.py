"""The programs of the cluster, each built once from its Go module.

The control plane and kubectl are those of the one-machine cluster (`rezone.local.tools`); what only
a real node needs is built from the modules under `go/`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path

from e2e.kind.command import run, say
from e2e.kind.places import Places
from rezone.local.gobuild import GoProgram, build
from rezone.local.tools import build_tools, find_go, kubernetes_linker_flags

MODULES = Path(__file__).with_name("go")
_CONTROL_PLANE = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "helm",
)
_STRIPPED = "-s -w"
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
    go = find_go(os.environ)
    for name, (module, package) in _PROGRAMS.items():
        kubernetes = module == "kubernetes"
        program = GoProgram(
            package=package,
            module=MODULES / module,
            linker_flags=kubernetes_linker_flags() if kubernetes else _STRIPPED,
            target=places.programs / module_digest(module) / name,
        )
        found[name] = program.built() or build(program, go, os.environ, say)
    return found


@functools.cache
def module_digest(module: str) -> str:
    """Return what names a module's text: its versions and our own sources in it."""
    digest = hashlib.sha256()
    for path in sorted((MODULES / module).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{module}-{digest.hexdigest()[:12]}"


def kind_files() -> Path:
    """Return the directory of the files that kind puts into its own node images."""
    env = {**os.environ, "GOFLAGS": "-mod=readonly"}
    answer = run(
        [find_go(os.environ), "mod", "download", "-json", "sigs.k8s.io/kind"],
        cwd=MODULES / "kind",
        env=env,
    )
    return Path(json.loads(answer)["Dir"], "images", "base", "files")
