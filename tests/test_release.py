"""A release is the same to the byte when it is built again, and complete."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.kubernetes.client_archive import NAME, client_archive

from rezone.local.tools import find_tools
from rezone.resources.crd import custom_resource_definitions

ROOT = Path(__file__).parents[1]
PARTS = (
    *("LICENSE", "README.md", "pyproject.toml", "uv.lock"),
    *("charts", "crds", "hack", "manifests", "operator"),
)
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))

# Of Artifact Hub's documentation (topics, annotations, Helm): those that a chart may have here.
ARTIFACT_HUB = {
    *("category", "crds", "crdsExamples", "images", "license", "links"),
    *("operator", "operatorCapabilities", "prerelease"),
}
CATEGORIES = {
    *("ai-machine-learning", "database", "integration-delivery", "monitoring-logging"),
    *("networking", "security", "storage", "streaming-messaging"),
}
CAPABILITIES = {
    *("Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"),
}
BOOLEANS = {"true", "false"}

pytestmark = [pytest.mark.slow]


@pytest.fixture
def release(hack: Callable[[str], Any]) -> Any:
    """Return hack/release.py."""
    return hack("release")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of builds: without a network where uv's cache has what they need.

    It has, where uv has made the environment with this cache: that builds the project, too.
    """
    offline = {**os.environ, "UV_OFFLINE": "1"}
    arguments = [UV, "build", "--quiet", "--wheel", "--out-dir", str(tmp_path / "probe")]
    done = subprocess.run(
        arguments, cwd=ROOT, env=offline, capture_output=True, timeout=300, check=False
    )
    return offline if done.returncode == 0 else {**os.environ}


def build(
    root: Path, output: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command as `make release` does."""
    helm = find_tools(["helm"])["helm"]
    return subprocess.run(
        [
            *(sys.executable, str(root / "hack" / "release.py"), "--output", str(output)),
            *("--base-url", "https://x.example/v1", "--homepage", "https://x.example"),
            *("--uv", UV, "--helm", str(helm)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )


def copied(place: Path) -> Path:
    """Return another checkout of the same sources: other times, other rights."""
    place.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, place / part, ignore=ignored, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, place / part)
    for path in place.rglob("*"):
        os.utime(path, (1, 1_000_000_000))
        path.chmod(0o700 if path.is_dir() else 0o600)
    return place


@pytest.mark.long
@pytest.mark.proves("TR-02")
def test_two_builds_of_a_release_are_equal_and_complete(
    release: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    """Nobody could tell whether a release was made of these sources, or what is in it."""
    first, second = tmp_path / "first", tmp_path / "second"
    done = build(ROOT, first, environment)
    assert done.returncode == 0, done.stderr
    again = build(copied(tmp_path / "checkout"), second, environment)
    assert again.returncode == 0, again.stderr
    files = {path.name: path.read_bytes() for path in first.iterdir()}
    assert {path.name: path.read_bytes() for path in second.iterdir()} == files
    version = release.version(ROOT)
    wheel_name = f"rezone-{version}-py3-none-any.whl"
    assert set(files) == {
        "SHA256SUMS",
        f"kubectl-rezone-{version}.tar.gz",
        wheel_name,
        f"rezone-{version}.cdx.json",
        f"rezone-{version}.tgz",
        f"rezone-olm-{version}.tar.gz",
        "rezone.yaml",
    }
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].decode().splitlines())
    assert sums == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in files.items()
        if name != "SHA256SUMS"
    }
    assert_chart(first / f"rezone-{version}.tgz")
    assert_sbom(json.loads(files[f"rezone-{version}.cdx.json"]), sums[wheel_name])
    assert_wheel(first / wheel_name, tmp_path / "installed")
    assert_client_of_clusters(tmp_path / "installed", tmp_path / NAME)
    refused = build(ROOT, first, environment)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr


def assert_wheel(wheel: Path, place: Path) -> None:
    """Assert that users install no cluster, demo or generator, and nothing that needs them."""
    shutil.unpack_archive(wheel, place, "zip")
    modules = {path.relative_to(place) for path in (place / "rezone").rglob("*.py")}
    assert Path("rezone/controller/process/main.py") in modules
    left_out = [name.removeprefix("operator/") for name in excluded()]
    assert len(left_out) == 6
    assert not [m for m in modules if m.as_posix().startswith(tuple(left_out))]
    names = {part.removesuffix(".py").replace("/", ".") for part in left_out}
    for module in modules:
        wanted = reshards_of(place / module) & names
        assert not wanted, f"{module} needs {wanted}, which the wheel has not"
    shown = installed(place, "--help")
    assert re.search(r"^  operator ", shown.stdout, re.MULTILINE), shown.stderr
    assert not re.search(r"^  (local|demo) ", shown.stdout, re.MULTILINE)
    refused = installed(place, "local", "up")
    assert "it is in a checkout of the sources alone" in refused.stderr


def excluded() -> list[str]:
    """Return what pyproject.toml leaves out of the wheel."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    return found


def reshards_of(path: Path) -> set[str]:
    """Return the modules that a file imports, with the packages that they are in."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.update((node.module, *(f"{node.module}.{each.name}" for each in node.names)))
    parts = [name.split(".") for name in found]
    return {".".join(each[:end]) for each in parts for end in range(1, len(each) + 1)}


def installed(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command from the wheel's files, with this environment's libraries."""
    return python(place, "from rezone.cli.main import main; main(prog_name='rezone')", *arguments)


def python(place: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code on the wheel's files, with this environment's libraries."""
    others = [part for part in sys.path if part and not (Path(part) / "rezone").is_dir()]
    client = {"BOOTSTRAP": "", "PARTITIONS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=place,
        env={**os.environ, **client, "PYTHONPATH": ":".join([str(place), *others])},
    )


def assert_client_of_clusters(place: Path, archive: Path) -> None:
    """Assert that the end-to-end client finds all it imports on what images have."""
    archive.write_bytes(client_archive())
    done = python(place, f"import runpy; runpy.run_path({str(archive)!r})")
    assert done.returncode == 0, done.stderr


def assert_chart(packed: Path) -> None:
    """Assert that Artifact Hub finds what it shows."""
    with tarfile.open(packed) as chart:
        names = chart.getnames()
        described = chart.extractfile("rezone/Chart.yaml")
        assert described is not None
        description = yaml.safe_load(described)
    assert {"rezone/LICENSE", "rezone/values.schema.json"} <= set(names)
    assert description["home"] == "https://x.example"
    annotations = description["annotations"]
    assert annotations["artifacthub.io/license"] == "Apache-2.0"
    kinds = yaml.safe_load(annotations["artifacthub.io/crds"])
    wanted = {body["spec"]["names"]["kind"] for body in custom_resource_definitions()}
    assert {each["kind"] for each in kinds} == wanted
    assert all(all(each.values()) for each in kinds)
    examples = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert {each["kind"] for each in examples} == wanted
    images = yaml.safe_load(annotations["artifacthub.io/images"])
    assert {each["name"] for each in images} == {"operator", "data-node", "spark"}
    assert_documented(annotations)


def assert_documented(annotations: dict[str, str]) -> None:
    """Assert that Artifact Hub knows each annotation and its value: it tells nobody of others."""
    names = {name.removeprefix("artifacthub.io/") for name in annotations}
    assert names <= ARTIFACT_HUB, names - ARTIFACT_HUB
    assert annotations["artifacthub.io/category"] in CATEGORIES
    assert annotations["artifacthub.io/operatorCapabilities"] in CAPABILITIES
    assert annotations["artifacthub.io/operator"] in BOOLEANS
    assert annotations["artifacthub.io/prerelease"] in BOOLEANS


def assert_sbom(sbom: dict[str, object], digest: str) -> None:
    """Assert that the SBOM is of this wheel, and has what it may bring and no tools of ours."""
    text = json.dumps(sbom)
    assert digest in text
    components = sbom["components"]
    assert isinstance(components, list)
    names = {each["name"] for each in components}
    assert {"pyarrow", "kopf", "kubernetes", "pyspark", "starlette"} <= names
    assert not {"pytest", "ruff", "zensical"} & names
    assert all(each["purl"].startswith("pkg:pypi/") for each in components)


def test_a_number_of_an_sbom_follows_from_its_content(release: Any, tmp_path: Path) -> None:
    """Two SBOMs with one number and other content would be taken for one."""
    wheel = tmp_path / "a.whl"
    numbers: set[str] = set()
    for content, name in ((b"a", "x"), (b"b", "x"), (b"a", "y"), (b"a", "x")):
        wheel.write_bytes(content)
        exported = {
            "serialNumber": f"urn:uuid:{len(numbers)}",
            "metadata": {"timestamp": str(len(numbers)), "component": {"version": "1"}},
            "components": [{"name": name}],
        }
        numbers.add(
            json.loads(release.reproducible_sbom(json.dumps(exported), wheel))["serialNumber"]
        )
    assert len(numbers) == 3


def test_package_and_chart_have_one_version(release: Any, tmp_path: Path) -> None:
    """A chart would install images that do not exist."""
    assert release.version(ROOT)
    (tmp_path / "charts" / "rezone").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    chart = {"version": "1.2.3", "appVersion": "1.2.2"}
    (tmp_path / "charts" / "rezone" / "Chart.yaml").write_text(yaml.safe_dump(chart))
    with pytest.raises(release.ReleaseError, match=r"set all three to one"):
        release.version(tmp_path)


def test_a_repository_of_artifact_hub_says_whose_it_is(release: Any) -> None:
    """A slip of the pen would have the repository be nobody's, which only its page there shows."""
    known = "7a1e7d5e-0c5b-4d43-9a2d-9d4c6f0c1a55"
    assert yaml.safe_load(release.artifact_hub_repository(known)) == {"repositoryID": known}
    with pytest.raises(release.ReleaseError, match="is no id"):
        release.artifact_hub_repository("my-charts")
