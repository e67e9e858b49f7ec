"""Namespaces of our own: network, mounts and processes, so that nothing outside is touched.

A run has a loopback that no other process is on, and rules and mounts that end with it. When its
first process ends, however that happens, the kernel ends all others.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.kind.command import Step, run, succeeds

INSIDE = "REZONE_CHAOS_INSIDE"

# Program -> the Debian package that brings it.
_PACKAGES = {"nft": "nftables", "gcc": "gcc", "unshare": "util-linux"}
_HEADER = ("/usr/include/stdlib.h", "libc6-dev")
_SYSTEM_PATH = "/usr/sbin:/sbin"
_PROBE = ("nft", "add", "table", "ip", "chaos_probe")
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


class UnfitMachineError(Exception):
    """Faults cannot be made on this machine; the message says why, and what would help."""


def find_system_programs() -> None:
    """Look for programs also where a user's PATH does not have those of the system."""
    known = os.environ.get("PATH", os.defpath)
    if _SYSTEM_PATH not in known:
        os.environ["PATH"] = f"{known}:{_SYSTEM_PATH}"


def outside() -> bool:
    """Return whether this process is not yet in namespaces of its own."""
    return INSIDE not in os.environ


def check_machine() -> None:
    """See that faults can be made here; UnfitMachineError says what is missing."""
    if sys.platform != "linux":
        raise UnfitMachineError("faults are made with Linux' namespaces and nftables")
    packages = _missing()
    if packages:
        raise UnfitMachineError(
            f"packages are missing that faults are made with; {_advice(packages)}"
        )
    if not succeeds([*unshare(), *_PROBE]):
        raise UnfitMachineError(
            "this user may make no namespaces here, or the kernel has no nftables: try it as root "
            f"(`{' '.join([*unshare(), *_PROBE])}` has to work)"
        )


def _missing() -> list[str]:
    found = {package for name, package in _PACKAGES.items() if shutil.which(name) is None}
    header, package = _HEADER
    return sorted(found if Path(header).exists() else {*found, package})


def _advice(packages: Sequence[str]) -> str:
    """Return what to do about missing packages."""
    return f"as root: apt-get install {' '.join(packages)}"


def install_packages() -> None:
    """Install the Debian packages whose programs are missing, where this user can.

    Raises CommandError if it fails.
    """
    packages = _missing()
    if packages and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        with Step(f"installing {' '.join(packages)}"):
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update"], env=env)
            run(["apt-get", "install", "-y", "--no-install-recommends", *packages], env=env)


def unshare() -> list[str]:
    """Return the words that run a program in namespaces of its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def go_inside(words: Sequence[str]) -> None:
    """Become a program in namespaces of its own; does not return."""
    command = [*unshare(), *words]
    os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})  # noqa: S606 - no shell is meant


def raise_loopback() -> None:
    """Bring up loopback, which is all the network that a new namespace has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name = struct.pack("16sh22x", b"lo", 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, name)
        (flags,) = struct.unpack_from("h", answer, 16)
        request = struct.pack("16sh22x", b"lo", flags | _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
