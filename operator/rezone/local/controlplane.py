"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes on loopback.

Ports are chosen once and kept in the state directory, so a restart finds every kubeconfig still
valid. Each process has a pid file; stopping checks the start time first, so that a pid taken over
by somebody else is never signalled. One control plane per state directory: a second start finds the
first one's processes and leaves them alone.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rezone.local.certificates import CertificateAuthority, service_account_key
from rezone.local.errors import LocalError, StartError
from rezone.local.gobuild import Report
from rezone.local.processes import PidFile, ProcessId, remove_tree, spawn, write_atomically
from rezone.local.tools import CONTROL_PLANE, find_tools

LOOPBACK = "127.0.0.1"
CONTEXT = "rezone-local"

_STOP_GRACE_SECONDS = 8.0
_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 20
_PORTS = list(range(20000, 32768))
# What a Go program of this size needs here; the collector works harder instead of growing, unless
# the environment says otherwise.
_GO_ENV = {"GOGC": "50"}
_CONTROLLERS_NOT_NEEDED = (
    "node-ipam-controller",
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-approving-controller",
    "persistentvolume-attach-detach-controller",
    "selinux-warning-controller",
)


@dataclass(frozen=True)
class ControlPlaneSettings:
    """How the control plane is to behave."""

    components: tuple[str, ...] = CONTROL_PLANE
    ready_timeout_seconds: float = 90.0
    # How long a node may be silent before it counts as lost, and how long pods then stay on it.
    node_monitor_grace_seconds: int = 16
    not_ready_toleration_seconds: int = 30
    # Only for clusters that nobody wants back after a power cut: tests.
    unsafe_no_fsync: bool = False
    extra_arguments: dict[str, tuple[str, ...]] = field(default_factory=dict)


class ControlPlane:
    """The control plane in one state directory."""

    def __init__(self, state: Path, settings: ControlPlaneSettings | None = None) -> None:
        self._state = state
        self._settings = settings or ControlPlaneSettings()
        self._pki = state / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, which they may change as they like."""
        return self._state / "kubeconfig"

    @property
    def own_kubeconfig(self) -> Path:
        """The kubeconfig of the cluster's own parts: the same rights, never changed by others."""
        return self._pki / "kubeconfig"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{LOOPBACK}:{self._ports()['kube-apiserver']}"

    def start(self, report: Report = lambda _line: None) -> None:
        """Start what does not run yet and wait until the API server is ready.

        Raises StartError with the end of the log if a part ends or is not ready in time,
        MissingToolError if a program is neither here nor can be built. What was started stays;
        `stop` ends it.
        """
        tools = find_tools(self._settings.components, report=report)
        authority = CertificateAuthority(self._pki)
        service_account_key(self._pki)
        self._write_kubeconfig(authority)
        deadline = time.monotonic() + self._settings.ready_timeout_seconds
        self._launch("etcd", tools["etcd"], self._etcd_arguments(authority))
        self._wait_port("etcd", self._ports()["etcd"], deadline)
        started = self._launch(
            "kube-apiserver", tools["kube-apiserver"], self._apiserver_arguments(authority)
        )
        self._wait_ready(deadline)
        if started:
            report(f"kube-apiserver: ready at {self.server}")
        if "kube-controller-manager" in tools:
            arguments = self._controller_manager_arguments()
            self._launch("kube-controller-manager", tools["kube-controller-manager"], arguments)
        if "kube-scheduler" in tools:
            self._launch("kube-scheduler", tools["kube-scheduler"], self._scheduler_arguments())

    def stop(self, *, delete: bool = False) -> None:
        """End all parts, the ones that write last; `delete` removes the state directory as well."""
        for name in reversed(CONTROL_PLANE):
            process = self._pid_file(name).read()
            if process is not None:
                process.stop(_STOP_GRACE_SECONDS)
            self._pid_file(name).clear()
        if delete:
            remove_tree(self._state)

    def running(self) -> dict[str, ProcessId | None]:
        """Return every wanted component with its process, None for one that does not run."""
        return {name: self._pid_file(name).read() for name in self._settings.components}

    def issue(self, name: str, *, common_name: str, hosts: Iterable[str] = ()) -> tuple[Path, Path]:
        """Return a certificate and key of this cluster's authority."""
        return CertificateAuthority(self._pki).issue(name, common_name=common_name, hosts=hosts)

    def _launch(self, name: str, program: Path, arguments: list[str]) -> bool:
        """Start a part; False when it runs already."""
        pid_file = self._pid_file(name)
        if pid_file.read() is not None:
            return False
        extra = self._settings.extra_arguments.get(name, ())
        self._log(name).unlink(missing_ok=True)
        process = spawn(
            [str(program), *arguments, *extra],
            log=self._log(name),
            env={**_GO_ENV, **os.environ},
            cwd=self._state,
        )
        pid_file.write(process)
        return True

    def _wait_port(self, name: str, port: int, deadline: float) -> None:
        while not _accepts(port):
            self._check_alive(name, deadline)
            time.sleep(_POLL_SECONDS)

    def _wait_ready(self, deadline: float) -> None:
        """Wait for /readyz: earlier answers lack the default roles and namespaces."""
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        while True:
            try:
                with opener.open(f"{self.server}/readyz", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                self._check_alive("kube-apiserver", deadline)
                time.sleep(_POLL_SECONDS)

    def _check_alive(self, name: str, deadline: float) -> None:
        if self._pid_file(name).read() is None:
            raise StartError(f"{name} ended at once:\n{self._log_tail(name)}")
        if time.monotonic() > deadline:
            waited = self._settings.ready_timeout_seconds
            raise StartError(f"{name} was not ready in {waited:.0f} s:\n{self._log_tail(name)}")

    def _log_tail(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])

    def _log(self, name: str) -> Path:
        return self._state / "logs" / f"{name}.log"

    def _pid_file(self, name: str) -> PidFile:
        return PidFile(self._state / "run" / f"{name}.json")

    def _ports(self) -> dict[str, int]:
        """Return the ports, chosen on first use and kept."""
        path = self._state / "ports.json"
        if path.exists():
            return {str(name): int(port) for name, port in json.loads(path.read_text()).items()}
        chosen = dict(zip(("etcd", "etcd-peer", "kube-apiserver"), free_ports(3), strict=True))
        write_atomically(path, json.dumps(chosen))
        return chosen

    def _etcd_arguments(self, authority: CertificateAuthority) -> list[str]:
        certificate, key = authority.issue("etcd", common_name="etcd", hosts=[LOOPBACK])
        ports = self._ports()
        client = f"https://{LOOPBACK}:{ports['etcd']}"
        peer = f"https://{LOOPBACK}:{ports['etcd-peer']}"
        arguments = [
            "--name=local",
            f"--data-dir={self._state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=local={peer}",
            "--auto-compaction-retention=1h",
            "--quota-backend-bytes=1073741824",
        ]
        for prefix in ("", "peer-"):
            arguments += [
                f"--{prefix}cert-file={certificate}",
                f"--{prefix}key-file={key}",
                f"--{prefix}trusted-ca-file={authority.certificate_path}",
                f"--{prefix}client-cert-auth=true",
            ]
        if self._settings.unsafe_no_fsync:
            arguments.append("--unsafe-no-fsync")
        return arguments

    def _apiserver_arguments(self, authority: CertificateAuthority) -> list[str]:
        hosts = [LOOPBACK, "localhost", "kubernetes", "kubernetes.default.svc", "10.96.0.1"]
        certificate, key = authority.issue("apiserver", common_name="kube-apiserver", hosts=hosts)
        etcd_certificate, etcd_key = authority.issue("etcd-client", common_name="kube-apiserver")
        kubelet_certificate, kubelet_key = authority.issue(
            "kubelet-client", common_name="kube-apiserver-kubelet-client"
        )
        signing_key = service_account_key(self._pki)
        toleration = self._settings.not_ready_toleration_seconds
        return [
            f"--etcd-servers=https://{LOOPBACK}:{self._ports()['etcd']}",
            f"--etcd-cafile={authority.certificate_path}",
            f"--etcd-certfile={etcd_certificate}",
            f"--etcd-keyfile={etcd_key}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            # Endpoints refuse loopback addresses, so the `kubernetes` Service stays without any.
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._ports()['kube-apiserver']}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={authority.certificate_path}",
            f"--kubelet-certificate-authority={authority.certificate_path}",
            f"--kubelet-client-certificate={kubelet_certificate}",
            f"--kubelet-client-key={kubelet_key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing_key}",
            f"--service-account-signing-key-file={signing_key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            f"--default-not-ready-toleration-seconds={toleration}",
            f"--default-unreachable-toleration-seconds={toleration}",
            "--allow-privileged=true",
            "--profiling=false",
            "--shutdown-delay-duration=0s",
            "--event-ttl=1h",
        ]

    def _controller_manager_arguments(self) -> list[str]:
        off = ",".join(f"-{name}" for name in _CONTROLLERS_NOT_NEEDED)
        return [
            f"--kubeconfig={self.own_kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--controllers=*,{off}",
            f"--service-account-private-key-file={service_account_key(self._pki)}",
            f"--root-ca-file={self._pki / 'ca.crt'}",
            f"--node-monitor-grace-period={self._settings.node_monitor_grace_seconds}s",
            "--node-monitor-period=1s",
            "--pvclaimbinder-sync-period=2s",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--profiling=false",
        ]

    def _scheduler_arguments(self) -> list[str]:
        return [
            f"--kubeconfig={self.own_kubeconfig}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
        ]

    def _write_kubeconfig(self, authority: CertificateAuthority) -> None:
        certificate, key = authority.issue(
            "admin", common_name="kubernetes-admin", organization="system:masters"
        )
        user = {
            "client-certificate-data": _encoded(certificate),
            "client-key-data": _encoded(key),
        }
        write_kubeconfig(
            self.own_kubeconfig, server=self.server, authority=authority.certificate_path, user=user
        )
        # The administrator's is theirs: a namespace or context that they set must stay.
        own = self.own_kubeconfig.read_text()
        if not _has_entries_of(self.kubeconfig, own):
            write_atomically(self.kubeconfig, own)


def write_kubeconfig(
    path: Path, *, server: str, authority: Path, user: dict[str, str], namespace: str = "default"
) -> None:
    """Write a kubeconfig with one context; readers never see half of it."""
    cluster = {"server": server, "certificate-authority-data": _encoded(authority)}
    context = {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": context}],
        "current-context": CONTEXT,
    }
    write_atomically(path, yaml.safe_dump(document))


def _has_entries_of(kubeconfig: Path, own: str) -> bool:
    """Whether a kubeconfig is there and names our cluster and its user as our own one does."""
    wanted = yaml.safe_load(own)
    try:
        found = yaml.safe_load(kubeconfig.read_text())
        return all(wanted[kind][0] in found[kind] for kind in ("clusters", "users"))
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return False


def free_ports(count: int) -> list[int]:
    """Return TCP ports of loopback nobody listens on now.

    Below the range the system gives to outgoing connections: one of those could take the port while
    the cluster is down. Raises LocalError if there are too few.
    """
    # Not from the first on: two clusters that start at once would choose the same ones.
    first = random.SystemRandom().randrange(len(_PORTS))
    found: list[int] = []
    for port in _PORTS[first:] + _PORTS[:first]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LocalError(f"no {count} free ports on {LOOPBACK}")


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
