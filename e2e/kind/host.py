"""What the machine must have: Debian packages, kernel limits, and a Docker daemon of our own.

The daemon shares nothing with another one on the machine but the names of Docker's iptables chains;
those are removed at the end only if they were not there before. It has no default bridge: nodes are
on one network whose bridge has a name of its own, and one rule keeps all packets of that bridge on
this machine. Without it a Service's address that no node knows yet would be looked for outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from e2e.kind.command import CommandError, Step, run, say, succeeds
from e2e.kind.places import Places
from rezone.local.processes import PidFile, spawn

NETWORK = "rezone-e2e"
BRIDGE = "rezone-e2e0"
SUBNET = "172.30.240.0/24"

# Program -> the Debian package that brings it.
_PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "ip": "iproute2",
}
# Every node runs systemd, kubelet and containerd, and each of them watches many files.
_KERNEL_LIMITS = {
    "fs/inotify/max_user_instances": 1024,
    "fs/inotify/max_user_watches": 524288,
}
_BUILD_CACHE = "10GB"
_DAEMON_STARTS_SECONDS = 60.0
_DAEMON_ENDS_SECONDS = 60.0
_USER_CHAIN = "DOCKER-USER"
_RULE = [_USER_CHAIN, "-i", BRIDGE, "!", "-o", BRIDGE, "-j", "REJECT"]
_CAP_SYS_RESOURCE = 1 << 24

# Docker asks for every capability for a privileged container, and runc refuses a container whose
# capabilities the caller does not have itself. The one that is missing is taken out on the way.
_RUNC_WITHOUT_CAPABILITY = """\
#!/bin/bash
spec=
for ((i = 1; i <= $#; i++)); do
  next=$((i + 1))
  case ${!i} in
    --bundle | -b) spec=${!next}/config.json ;;
    --process | -p) spec=${!next} ;;
  esac
done
if [ -n "$spec" ] && [ -f "$spec" ]; then
  sed -i -e 's/"CAP_SYS_RESOURCE",//g' -e 's/,"CAP_SYS_RESOURCE"//g' "$spec"
fi
exec runc "$@"
"""


def prepare(places: Places) -> None:
    """Install what is missing, raise kernel limits, start the daemon and its network.

    Raises CommandError if this user or this machine cannot.
    """
    install_packages()
    _raise_kernel_limits()
    start_docker(places)
    _make_network(places)


def install_packages() -> None:
    """Install the Debian packages whose programs are not there.

    Raises CommandError with what to install by hand, where that is not possible.
    """
    missing = sorted({pkg for name, pkg in _PACKAGES.items() if shutil.which(name) is None})
    if not missing:
        return
    advice = f"as root: apt-get install {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise CommandError(f"programs are missing that a cluster needs; {advice}")
    with Step(f"installing {' '.join(missing)}"):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update"], env=env)
        # policy-rc.d: the packages' own services must not start beside our daemon.
        with _no_services():
            run(["apt-get", "install", "-y", "--no-install-recommends", *missing], env=env)


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            policy.unlink()


def _raise_kernel_limits() -> None:
    for name, least in _KERNEL_LIMITS.items():
        path = Path("/proc/sys", name)
        if int(path.read_text()) < least:
            try:
                path.write_text(str(least))
            except OSError as error:
                raise CommandError(f"{path} must be at least {least}: {error}") from error


def runs(places: Places) -> bool:
    """Whether the daemon is there and answers."""
    return _pid_file(places).read() is not None and _answers(places)


def start_docker(places: Places) -> None:
    """Start the daemon if it does not run; returns when it answers."""
    if runs(places):
        return
    pid_file = _pid_file(places)
    if os.geteuid() != 0:
        raise CommandError("only root can start the Docker daemon that the nodes run in")
    with Step("starting a Docker daemon of our own"):
        places.docker.mkdir(parents=True, exist_ok=True)
        _note_existing_chains(places)
        log = places.logs / "dockerd.log"
        pid_file.write(spawn(_daemon_command(places), log=log))
        deadline = time.monotonic() + _DAEMON_STARTS_SECONDS
        while not _answers(places):
            if pid_file.read() is None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise CommandError(f"dockerd did not start:\n{tail}")
            time.sleep(0.2)


def _daemon_command(places: Places) -> list[str]:
    command = [
        "dockerd",
        f"--data-root={places.docker / 'data'}",
        f"--exec-root={places.docker / 'exec'}",
        f"--pidfile={places.docker / 'pid'}",
        f"--host=unix://{places.socket}",
        "--bridge=none",
        f"--config-file={_daemon_settings(places)}",
        "--storage-driver=overlay2",
    ]
    if not _has_sys_resource():
        wrapper = places.docker / "runc-without-sys-resource"
        wrapper.write_text(_RUNC_WITHOUT_CAPABILITY)
        wrapper.chmod(0o755)
        command += [f"--add-runtime=less={wrapper}", "--default-runtime=less"]
    return command


def _daemon_settings(places: Places) -> Path:
    """Write the daemon's settings: a cache of builds that does not fill the disk."""
    path = places.docker / "daemon.json"
    collection = {"enabled": True, "defaultKeepStorage": _BUILD_CACHE}
    path.write_text(json.dumps({"builder": {"gc": collection}}))
    return path


def _has_sys_resource() -> bool:
    status = Path("/proc/self/status").read_text()
    bounding = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bounding.split()[1], 16) & _CAP_SYS_RESOURCE)


def _pid_file(places: Places) -> PidFile:
    return PidFile(places.docker / "process.json")


def _answers(places: Places) -> bool:
    return succeeds(["docker", "version"], env=places.environment())


def _make_network(places: Places) -> None:
    env = places.environment()
    if not succeeds(["docker", "network", "inspect", NETWORK], env=env):
        run(
            [
                *["docker", "network", "create", "--driver=bridge", f"--subnet={SUBNET}"],
                f"--opt=com.docker.network.bridge.name={BRIDGE}",
                NETWORK,
            ],
            env=env,
        )
    # A daemon that finds its network of the last time does not make the chain for users again.
    if _USER_CHAIN not in _chains("filter"):
        run(["iptables", "-N", _USER_CHAIN])
        run(["iptables", "-I", "FORWARD", "-j", _USER_CHAIN])
    if not succeeds(["iptables", "-C", *_RULE]):
        run(["iptables", "-I", *_RULE])


def stop_docker(places: Places) -> None:
    """Stop the daemon with what runs in it, and take back its network and its rules."""
    pid_file = _pid_file(places)
    process = pid_file.read()
    if process is None:
        return
    with Step("stopping the Docker daemon"):
        env = places.environment()
        succeeds(["docker", "network", "rm", NETWORK], env=env)
        process.stop(_DAEMON_ENDS_SECONDS)
        process.end_rest()
        pid_file.clear()
        while succeeds(["iptables", "-D", *_RULE]):
            pass
        _remove_rules(BRIDGE)
        # Still there if a container that somebody else made was on it.
        succeeds(["ip", "link", "delete", BRIDGE])
        _remove_new_chains(places)


def _chains(table: str) -> list[str]:
    rules = run(["iptables", "-t", table, "-S"]).splitlines()
    return [line.split()[1] for line in rules if line.startswith("-N DOCKER")]


def _note_existing_chains(places: Places) -> None:
    """Remember how the machine's packet filter was: whether another daemon has its chains here."""
    mark = places.docker / "chains-were-there"
    mark.unlink(missing_ok=True)
    if _chains("filter"):
        mark.touch()
    # The daemon sets it to DROP where nobody forwarded packets before.
    policy = run(["iptables", "-S", "FORWARD"]).split()[2]
    (places.docker / "forward-policy").write_text(policy)


def _remove_rules(word: str) -> None:
    """Remove the rules outside Docker's own chains that have this word."""
    for table in ("filter", "nat"):
        chains = _chains(table)
        for line in run(["iptables", "-t", table, "-S"]).splitlines():
            words = line.split()
            if words[0] == "-A" and words[1] not in chains and word in words:
                run(["iptables", "-t", table, "-D", *words[1:]])


def _remove_new_chains(places: Places) -> None:
    """Remove Docker's chains and the jumps to them, unless they are another daemon's too."""
    if (places.docker / "chains-were-there").exists():
        say("Docker's iptables chains stay: another daemon had them before")
        return
    for table in ("filter", "nat"):
        chains = _chains(table)
        for chain in chains:
            _remove_rules(chain)
        for flag in ("-F", "-X"):
            for chain in chains:
                run(["iptables", "-t", table, flag, chain])
    run(["iptables", "-P", "FORWARD", (places.docker / "forward-policy").read_text()])
