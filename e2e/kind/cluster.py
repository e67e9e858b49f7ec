"""The cluster itself: kind makes it from the node image, and removes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from e2e.kind.command import Step, run, succeeds
from e2e.kind.host import NETWORK
from e2e.kind.nodeimage import COREDNS_TAG, ETCD_TAG, REPOSITORY
from e2e.kind.places import Places

NAME = "rezone-e2e"
CONTEXT = f"kind-{NAME}"
ZONE_LABEL = "topology.kubernetes.io/zone"
# Three failure domains; the fourth worker joins the first one's.
WORKER_DOMAINS = ("a", "b", "c", "a")
_CREATED_SECONDS = 600.0


class KindCluster:
    """A cluster of one control plane and a few workers, each a container."""

    def __init__(self, places: Places, programs: Mapping[str, Path]) -> None:
        self._places = places
        self._kind = programs["kind"]
        self._kubectl = programs["kubectl"]
        self._loaded = places.root / "loaded-images"
        self._env = {**places.environment(), "KIND_EXPERIMENTAL_DOCKER_NETWORK": NETWORK}

    def exists(self) -> bool:
        """Whether kind knows the cluster."""
        return NAME in run([self._kind, "get", "clusters"], env=self._env).split()

    def create(self, node_image: str) -> None:
        """Make the cluster and wait until its nodes and its system pods are ready.

        Raises CommandError if it does not get there; what was made stays, to be looked at.
        """
        config = self._places.root / "kind.yaml"
        config.write_text(yaml.safe_dump(_kind_config()))
        with Step(f"creating a cluster of 1 + {len(WORKER_DOMAINS)} nodes"):
            create = [str(self._kind), "create", "cluster", "--name", NAME, "--retain"]
            flags = ["--config", str(config), "--image", node_image, "--wait", "180s"]
            run([*create, *flags], env=self._env, timeout_seconds=_CREATED_SECONDS)
            self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self.kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=180s")
        for workload in ("daemonset/kube-proxy", "daemonset/pod-network", "deployment/coredns"):
            self.kubectl("-n", "kube-system", "rollout", "status", workload, "--timeout=180s")
        self.kubectl(
            "-n", "node-volumes", "rollout", "status", "deployment/provisioner", "--timeout=180s"
        )

    def load(self, images: Sequence[str]) -> str:
        """Put images of our Docker daemon into the store of every node that lacks them.

        Returns the tag that all of them have there: it names their contents, so that pods of
        another content are made again.
        """
        ids = [self._docker("image", "inspect", "--format={{.Id}}", image) for image in images]
        tag = f"e2e-{hashlib.sha256(''.join(ids).encode()).hexdigest()[:12]}"
        if self._loaded.exists() and self._loaded.read_text() == tag:
            return tag
        archive = self._places.work / "images.tar"
        archive.parent.mkdir(parents=True, exist_ok=True)
        tagged = [f"{image.rpartition(':')[0]}:{tag}" for image in images]
        with Step(f"loading {len(images)} images into the nodes"):
            self._remove_images([image.rpartition(":")[0] for image in images])
            for image, name in zip(images, tagged, strict=True):
                self._docker("tag", image, name)
            self._docker("save", "-o", str(archive), *tagged)
            load = [str(self._kind), "load", "image-archive", str(archive), "--name", NAME]
            run(load, env=self._env)
            self._docker("image", "rm", *tagged)
            archive.unlink()
        self._loaded.write_text(tag)
        return tag

    def _remove_images(self, repositories: Sequence[str]) -> None:
        """Remove earlier contents from every node: each is over 2 GB with its unpacked layers."""
        ctr = ("ctr", "--namespace=k8s.io", "images")
        for node in run([self._kind, "get", "nodes", "--name", NAME], env=self._env).split():
            there = self._docker("exec", node, *ctr, "list", "--quiet").split()
            old = [name for name in there for each in repositories if f"/{each}:" in f"/{name}"]
            if old:
                self._docker("exec", node, *ctr, "rm", "--sync", *old)

    def _docker(self, *arguments: str) -> str:
        return run(["docker", *arguments], env=self._env)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl on this cluster."""
        return run([self._kubectl, *arguments], env=self._env, text=text)

    def delete(self) -> None:
        """Remove the nodes and what they stored."""
        if not succeeds(["docker", "version"], env=self._env):
            return
        with Step("removing the cluster"):
            self._loaded.unlink(missing_ok=True)
            run([self._kind, "delete", "cluster", "--name", NAME], env=self._env)
            run(["docker", "volume", "prune", "--force"], env=self._env)


def _kind_config() -> dict[str, object]:
    """Return kind's configuration: our images, and failure domains as a cloud would label them."""
    kubeadm = {
        "kind": "ClusterConfiguration",
        "imageRepository": REPOSITORY,
        "dns": {"imageTag": COREDNS_TAG},
        "etcd": {"local": {"imageTag": ETCD_TAG}},
    }
    workers = [{"role": "worker", "labels": {ZONE_LABEL: domain}} for domain in WORKER_DOMAINS]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"ipFamily": "ipv4", "kubeProxyMode": "nftables"},
        "kubeadmConfigPatches": [yaml.safe_dump(kubeadm)],
        "nodes": [{"role": "control-plane"}, *workers],
    }
