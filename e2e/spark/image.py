"""Spark's images on the nodes of a kind cluster: over a gigabyte, so loaded only where needed."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from e2e.kind.binaries import build_programs
from e2e.kind.cluster import NAME
from e2e.kind.command import Step, run
from e2e.kind.places import Places

_IMAGES_SCRIPT = Path(__file__).parents[2] / "hack" / "images.py"
_ON_A_NODE = ("ctr", "--namespace=k8s.io", "images")
# The tag of what was built, before it is named by its content.
_BUILT = "e2e"
_BUILT_SECONDS = 1800.0


def ensure_spark_image(places: Places, repository: str) -> str:
    """Build the image and put it into every node that lacks it; return its name there."""
    with Step("building the Spark image"):
        command = [sys.executable, str(_IMAGES_SCRIPT), "--tag", _BUILT, "spark"]
        run(command, env=places.environment(), timeout_seconds=_BUILT_SECONDS)
    return _ensure_on_nodes(places, f"{repository}-spark", nodes=None)


def ensure_operator_image(places: Places, repository: str, program: Path, node: str) -> str:
    """Make an image of the spark-operator and put it into a node; return its name there.

    As upstream's: the program beside a Spark, which here is that of the jobs. Only after
    `ensure_spark_image`.
    """
    name = f"{repository}-spark-operator"
    with Step("building the spark-operator's image"), tempfile.TemporaryDirectory() as folder:
        shutil.copy2(program, Path(folder, "spark-operator"))
        Path(folder, "Dockerfile").write_text(
            f"FROM {repository}-spark:{_BUILT}\n"
            "COPY spark-operator /usr/bin/spark-operator\n"
            'ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/usr/bin/spark-operator"]\n'
        )
        run(["docker", "build", "--tag", f"{name}:{_BUILT}", folder], env=places.environment())
    return _ensure_on_nodes(places, name, nodes=[node])


def _ensure_on_nodes(places: Places, repository: str, nodes: list[str] | None) -> str:
    """Load what was built into the nodes that lack it (None: of all); return its name there.

    The name tells the content, so that a changed image is never taken for the one that is there.
    """
    env, built = places.environment(), f"{repository}:{_BUILT}"
    found = run(["docker", "image", "inspect", "--format={{.Id}}", built], env=env)
    image = f"{built}-{found.strip().removeprefix('sha256:')[:12]}"
    kind = build_programs(places)["kind"]
    lacking = []
    for node in nodes or run([kind, "get", "nodes", "--name", NAME], env=env).split():
        there = run(["docker", "exec", node, *_ON_A_NODE, "list", "--quiet"], env=env).split()
        ours = [name for name in there if f"/{repository}:" in f"/{name}"]
        if any(name.endswith(image) for name in ours):
            continue
        lacking.append(node)
        if ours:
            run(["docker", "exec", node, *_ON_A_NODE, "rm", "--sync", *ours], env=env)
    if lacking:
        with Step(f"loading {image} into {len(lacking)} nodes"):
            _load(places, kind, built, image, lacking)
    return image


def _load(places: Places, kind: Path, built: str, image: str, nodes: list[str]) -> None:
    env, archive = places.environment(), places.work / "spark-image.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    run(["docker", "tag", built, image], env=env)
    try:
        run(["docker", "save", "--output", archive, image], env=env)
        run(
            [kind, "load", "image-archive", archive, "--name", NAME, "--nodes", ",".join(nodes)],
            env=env,
            timeout_seconds=_BUILT_SECONDS,
        )
    finally:
        archive.unlink(missing_ok=True)
        run(["docker", "image", "rm", image], env=env)
