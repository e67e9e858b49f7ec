"""Builds everything that a release consists of into one directory, the same to the byte each time.

    python hack/release.py --output dist/release --base-url https://... --homepage https://...

The wheel, the chart with its metadata for Artifact Hub, the plugin of kubectl with its manifest for
krew, the bundle for OLM, the SBOM (CycloneDX) of all that the wheel may bring, and SHA256SUMS over
them. Times are SOURCE_DATE_EPOCH, by default the one of the images. Nothing is signed or uploaded:
whoever releases signs SHA256SUMS with a key of their own (docs/contribute/release.md).
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import olm
import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "rezone"
EPOCH_DEFAULT: Final = 1735689600  # that of the images (Dockerfile)
SUMS: Final = "SHA256SUMS"
ARTIFACT_HUB_FILE: Final = "artifacthub-repo.yml"
SECONDS_MAX: Final = 300
# What people may install; development tools are in no artifact.
SBOM_ARGUMENTS: Final = ("--frozen", "--all-extras", "--no-default-groups", "--format=cyclonedx1.5")


class ReleaseError(Exception):
    """Raised when no release can be made; the message says what to do."""


def epoch() -> int:
    """Return the time of everything in a release, in seconds."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or EPOCH_DEFAULT)


def version(root: Path) -> str:
    """Return the version. Raises ReleaseError when package and chart differ."""
    found = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((root / "charts" / NAME / "Chart.yaml").read_text())
    if not found == chart["version"] == chart["appVersion"]:
        raise ReleaseError(
            f"pyproject.toml has version {found}, the chart {chart['version']} for "
            f"{chart['appVersion']}: set all three to one"
        )
    return str(found)


def release(
    root: Path,
    output: Path,
    *,
    uv: str,
    helm: str,
    base_url: str,
    homepage: str,
    artifact_hub_id: str = "",
) -> None:
    """Build all artifacts. Raises ReleaseError."""
    if output.exists() and any(output.iterdir()):
        raise ReleaseError(f"{output} is not empty: what is in it would look like this release")
    output.mkdir(parents=True, exist_ok=True)
    found = version(root)
    _run([uv, "build", "--quiet", "--wheel", "--out-dir", str(output)], root)
    (wheel,) = output.glob("*.whl")
    (output / ".gitignore").unlink(missing_ok=True)  # uv's, for directories in a repository
    build_chart(root, output, helm=helm, homepage=homepage)
    _run(
        [
            *(sys.executable, str(root / "hack" / "krew.py"), "--wheel", str(wheel)),
            *("--base-url", base_url, "--homepage", homepage, "--output", str(output)),
        ],
        root,
    )
    build_bundle(root, output / f"{NAME}-olm-{found}.tar.gz", homepage=homepage)
    if artifact_hub_id:
        (output / ARTIFACT_HUB_FILE).write_text(artifact_hub_repository(artifact_hub_id))
    exported = _run([uv, "export", "--quiet", *SBOM_ARGUMENTS], root)
    sbom = output / f"{NAME}-{found}.cdx.json"
    sbom.write_text(reproducible_sbom(exported, wheel))
    files = sorted(path for path in output.iterdir() if path.name != SUMS)
    sums = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (output / SUMS).write_text("".join(sums))


def _run(arguments: Sequence[str], root: Path) -> str:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    done = subprocess.run(
        list(arguments),
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(arguments[:3])} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def reproducible_sbom(exported: str, wheel: Path) -> str:
    """Return uv's SBOM with the wheel's digest, and a time and a number that follow from it."""
    sbom = json.loads(exported)
    sbom.pop("serialNumber", None)
    described = sbom["metadata"]
    described.pop("timestamp", None)
    component = described["component"]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    component["purl"] = f"pkg:pypi/{NAME}@{component['version']}"
    component["hashes"] = [{"alg": "SHA-256", "content": digest}]
    content = json.dumps(sbom, sort_keys=True)
    number = uuid.UUID(bytes=hashlib.sha256(content.encode()).digest()[:16], version=4)
    described["timestamp"] = datetime.fromtimestamp(epoch(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    sbom["serialNumber"] = f"urn:uuid:{number}"
    return json.dumps(sbom, indent=2) + "\n"


def build_chart(root: Path, output: Path, *, helm: str, homepage: str) -> Path:
    """Package the chart, with the homepage and its kinds for Artifact Hub, at a fixed time."""
    with tempfile.TemporaryDirectory() as place:
        staged = Path(place) / NAME
        shutil.copytree(root / "charts" / NAME, staged)
        description = yaml.safe_load((staged / "Chart.yaml").read_text())
        description["home"] = homepage
        description["annotations"] |= artifact_hub(root, homepage)
        (staged / "Chart.yaml").write_text(yaml.safe_dump(description, sort_keys=False))
        shutil.copy(root / "LICENSE", staged / "LICENSE")
        _run([helm, "package", str(staged), "--destination", place], root)
        (made,) = Path(place).glob("*.tgz")
        target = output / made.name
        target.write_bytes(repacked(made.read_bytes()))
    return target


def artifact_hub(root: Path, homepage: str) -> dict[str, str]:
    """Return the annotations that list the chart's kinds, of their definitions, and its images."""
    kinds = []
    for path in sorted((root / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        names, (served,) = body["spec"]["names"], body["spec"]["versions"]
        kinds.append(
            {
                "kind": names["kind"],
                "version": served["name"],
                "name": body["metadata"]["name"],
                "displayName": names["kind"],
                "description": served["schema"]["openAPIV3Schema"]["description"],
            }
        )
    examples = [yaml.safe_load(path.read_text()) for path in olm.samples(root)]
    found = {
        "crds": kinds,
        "crdsExamples": examples,
        "images": olm.related_images(olm.base_objects(root)),
        "links": [{"name": "source", "url": homepage}],
    }
    return {f"artifacthub.io/{k}": yaml.safe_dump(v, sort_keys=False) for k, v in found.items()}


def artifact_hub_repository(repository_id: str) -> str:
    """Return the file by which Artifact Hub knows whose a chart repository is.

    Raises ReleaseError for what is no id of Artifact Hub's.
    """
    try:
        known = str(uuid.UUID(repository_id))
    except ValueError as error:
        raise ReleaseError(
            f"{repository_id} is no id of Artifact Hub's, which is a UUID"
        ) from error
    return yaml.safe_dump({"repositoryID": known})


def build_bundle(root: Path, target: Path, *, homepage: str) -> None:
    """Write an archive of the bundle for the Operator Lifecycle Manager."""
    files = {
        f"{NAME}-olm/{path}": text.encode()
        for path, text in olm.bundle_files(root, homepage).items()
    }
    target.write_bytes(packed(files))


def repacked(archive: bytes) -> bytes:
    """Return a tar.gz with the same files, packed by us."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as old:
        for member in old.getmembers():
            content = old.extractfile(member)
            if content is None:
                raise ReleaseError(f"{member.name} of the chart is no file")
            files[member.name] = content.read()
    return packed(files)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return a tar.gz of files in the order of their names, at a fixed time."""
    result = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=result, mode="wb", mtime=0, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o644, epoch()
            tar.addfile(entry, io.BytesIO(content))
    return result.getvalue()


def main() -> int:
    """Build a release into a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="a directory that is empty")
    parser.add_argument("--base-url", required=True, help="where the files will be")
    parser.add_argument("--homepage", required=True)
    parser.add_argument("--artifact-hub-id", default="", help="of your chart repository there")
    parser.add_argument("--uv", default="uv")
    parser.add_argument("--helm", default="helm")
    chosen: Any = parser.parse_args()
    try:
        release(
            ROOT,
            chosen.output.resolve(),
            uv=chosen.uv,
            helm=chosen.helm,
            base_url=chosen.base_url,
            homepage=chosen.homepage,
            artifact_hub_id=chosen.artifact_hub_id,
        )
    except (OSError, ReleaseError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write((chosen.output / SUMS).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
