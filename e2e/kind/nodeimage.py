"""The image of a node: a Debian root, kind's own files, Kubernetes, and the system pods' images.

There is no registry, so what kubeadm and kind start must be in the node's image store from the
first moment: the host's containerd (the same Debian release's) fills it before the root is packed.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from e2e.gomodules import GoModule
from e2e.kind.binaries import MODULES, kind_files
from e2e.kind.command import CommandError, Step, run, succeeds
from e2e.kind.places import Places
from rezone.local.tools import KUBERNETES_VERSION

REPOSITORY = "rezone-e2e"
ETCD_TAG = "1"
COREDNS_TAG = "1"
_RELEASE = "bookworm"
_PACKAGES = (
    *("systemd", "systemd-sysv", "busybox-static", "procps", "kmod", "mount", "util-linux"),
    *("containerd", "runc", "containernetworking-plugins", "libseccomp2"),
    *("iptables", "nftables", "conntrack", "ethtool", "socat", "iproute2"),
    *("e2fsprogs", "ca-certificates", "curl"),
)
_FILES = Path(__file__).with_name("node")
_CONTAINERD_STARTS_SECONDS = 30.0
_UNITS = "etc/systemd/system"
# Of kind's own files those that a node needs, and their modes.
_KIND_FILES = {
    "usr/local/bin/entrypoint": 0o755,
    "kind/bin/create-kubelet-cgroup-v2.sh": 0o755,
    "kind/bin/undo-mount-hacks.sh": 0o755,
    "etc/default/kubelet": 0o644,
    "etc/sysctl.d/10-network-magic.conf": 0o644,
    "etc/sysctl.d/10-network-security.conf": 0o644,
    f"{_UNITS}/kubelet.service": 0o644,
    f"{_UNITS}/kubelet.slice": 0o644,
    f"{_UNITS}/undo-mount-hacks.service": 0o644,
    f"{_UNITS}/kubelet.service.d/10-kubeadm.conf": 0o644,
    f"{_UNITS}/kubelet.service.d/11-kind.conf": 0o644,
}
_OWN_FILES = {
    "network.sh": ("kind/bin/network.sh", 0o755),
    "network.yaml": ("kind/manifests/default-cni.yaml", 0o644),
    "storage.yaml": ("kind/manifests/default-storage.yaml", 0o644),
    "containerd.toml": ("etc/containerd/config.toml", 0o644),
}
# Units that make no sense in a container, or would touch the machine's devices.
_UNWANTED_UNITS = (
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "lib/systemd/system/multi-user.target.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
    "etc/systemd/system/*.wants/*",
)
_UNWANTED_DATA = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man")


def ensure_node_image(places: Places, programs: Mapping[str, Path]) -> str:
    """Return the name of the node image, made now if the daemon does not have it.

    Raises CommandError if a step fails.
    """
    name = f"{REPOSITORY}/node:{_digest()}"
    env = places.environment()
    if succeeds(["docker", "image", "inspect", name], env=env):
        return name
    root = places.work / "root"
    with _unpacked(places, root):
        with Step("node image: images of the system pods"):
            _fill_image_store(places, root, _system_images(places, root, programs))
        with Step("node image: files"):
            _place_files(root, programs)
        with Step("node image: packing"):
            _pack(places, root, name)
    return name


def _digest() -> str:
    """Name what the image is made of."""
    digest = hashlib.sha256(KUBERNETES_VERSION.encode())
    for path in (Path(__file__), *sorted(_FILES.iterdir())):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for module in sorted(MODULES.iterdir()):
        digest.update(GoModule(module).name.encode())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _unpacked(places: Places, root: Path) -> Iterator[None]:
    """Give a fresh Debian root and remove it at the end; the pristine one is kept packed."""
    names = hashlib.sha256(" ".join((_RELEASE, *_PACKAGES)).encode()).hexdigest()[:12]
    packed = places.root / f"debian-{names}.tar"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        if packed.exists():
            run(["tar", "-C", root, "-xf", packed])
        else:
            with Step("node image: a Debian root"):
                packages = f"--include={','.join(_PACKAGES)}"
                run(["debootstrap", "--variant=minbase", packages, _RELEASE, root])
                for path in _UNWANTED_DATA:
                    shutil.rmtree(root / path, ignore_errors=True)
                partial = packed.with_suffix(".partial")
                run(["tar", "-C", root, "--exclude=./dev/*", "-cf", partial, "."])
                partial.replace(packed)
        yield
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _system_images(places: Places, root: Path, programs: Mapping[str, Path]) -> Path:
    """Write one archive with the images of all system pods."""
    version = f"v{KUBERNETES_VERSION}"
    tags = {
        "kube-apiserver": version,
        "kube-controller-manager": version,
        "kube-scheduler": version,
        "kube-proxy": version,
        "etcd": ETCD_TAG,
        "coredns": COREDNS_TAG,
        "pause": "1",
        "local-path-provisioner": "1",
    }
    images = []
    for program, tag in tags.items():
        tree = places.work / "image"
        shutil.rmtree(tree, ignore_errors=True)
        # Working directory of whatever wants to write something.
        (tree / "tmp").mkdir(parents=True)
        # On PATH: kubeadm's pods name their programs without a directory.
        (tree / "usr/local/bin").mkdir(parents=True)
        shutil.copy2(programs[program], tree / "usr/local/bin" / program)
        if program == "kube-proxy":
            _copy_with_libraries(root, ["/usr/sbin/nft", "/usr/sbin/conntrack"], tree)
        images.append(_image(places, tree, f"{program}:{tag}", f'ENTRYPOINT ["{program}"]'))
    tree = places.work / "image"
    shutil.rmtree(tree)
    (tree / "bin").mkdir(parents=True)
    shutil.copy2(root / "bin/busybox", tree / "bin/busybox")
    for applet in run([root / "bin/busybox", "--list"]).split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    images.append(_image(places, tree, "busybox:1", 'CMD ["/bin/sh"]'))
    shutil.rmtree(tree)
    archive = places.work / "system.tar"
    run(["docker", "save", "-o", archive, *images], env=places.environment())
    run(["docker", "image", "rm", *images], env=places.environment())
    return archive


def _image(places: Places, tree: Path, name: str, instruction: str) -> str:
    """Make an image of one layer; returns its name."""
    image = f"{REPOSITORY}/{name}"
    packed = places.work / "layer.tar"
    run(["tar", "-C", tree, "--owner=0", "--group=0", "-cf", packed, "."])
    path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    changes = ["--change", path, "--change", instruction]
    run(["docker", "import", *changes, packed, image], env=places.environment())
    packed.unlink()
    return image


def _copy_with_libraries(root: Path, programs: list[str], tree: Path) -> None:
    """Copy programs of the Debian root with every library they load."""
    listed = run(["chroot", root, "ldd", *programs])
    for name in [*programs, *set(re.findall(r"(/\S+\.so\S*) \(", listed))]:
        target = tree / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        # The root's links are absolute: resolved inside it, not on this machine.
        shutil.copy2(root / run(["chroot", root, "readlink", "-f", name]).strip()[1:], target)


def _fill_image_store(places: Places, root: Path, archive: Path) -> None:
    """Import the archive with a containerd whose data is the node's."""
    state = places.work / "containerd"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    config = state / "config.toml"
    config.write_text(
        f'version = 2\nroot = "{root}/var/lib/containerd"\nstate = "{state}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{state}/sock"\n'
    )
    ctr = ["ctr", "--address", str(state / "sock"), "--namespace", "k8s.io"]
    with (
        (state / "log").open("wb") as log,
        subprocess.Popen(["containerd", "--config", str(config)], stdout=log, stderr=log) as daemon,
    ):
        try:
            deadline = time.monotonic() + _CONTAINERD_STARTS_SECONDS
            while not succeeds([*ctr, "version"]):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    raise CommandError(f"containerd did not start:\n{(state / 'log').read_text()}")
                time.sleep(0.1)
            # Unpacked by each node itself, on its own file system.
            run([*ctr, "images", "import", "--no-unpack", archive])
            for image in run([*ctr, "images", "list", "--quiet"]).split():
                # The kubelet must not collect what nobody could pull again.
                run([*ctr, "images", "label", image, "io.cri-containerd.pinned=pinned"])
        finally:
            daemon.terminate()
    archive.unlink()
    shutil.rmtree(state)


def _place_files(root: Path, programs: Mapping[str, Path]) -> None:
    source = kind_files()
    for name, mode in _KIND_FILES.items():
        _place(source / name, root / name, mode)
    for name, (target, mode) in _OWN_FILES.items():
        _place(_FILES / name, root / target, mode)
    for program in ("kubelet", "kubeadm", "kubectl"):
        _place(programs[program], root / "usr/bin" / program, 0o755)
    (root / "kind/version").write_text(f"v{KUBERNETES_VERSION}")
    for name in ("etc/kubernetes/manifests", "etc/cni/net.d", "lib/modules", "opt/cni"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "opt/cni/bin").symlink_to("/usr/lib/cni")
    for pattern in _UNWANTED_UNITS:
        for path in root.glob(pattern):
            path.unlink()
    with (root / "etc/systemd/journald.conf").open("a") as config:
        config.write("ReadKMsg=no\n")
    (root / "etc/machine-id").write_text("")
    units = ["kubelet.service", "containerd.service", "undo-mount-hacks.service"]
    run(["chroot", root, "systemctl", "enable", *units])
    # It would register things with the one kernel of the machine.
    run(["chroot", root, "systemctl", "mask", "systemd-binfmt.service"])


def _place(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _pack(places: Places, root: Path, name: str) -> None:
    packed = places.work / "node.tar"
    excluded = [f"--exclude=./{name}/*" for name in ("proc", "sys", "dev")]
    run(["tar", "-C", root, *excluded, "-cf", packed, "."])
    changes = (
        "ENV container=docker",
        "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]',
    )
    flags = [word for change in changes for word in ("--change", change)]
    run(["docker", "import", *flags, packed, name], env=places.environment())
    packed.unlink()
