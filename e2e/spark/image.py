"""The Spark image on the nodes of a kind cluster: over a gigabyte, so loaded only where needed."""

from __future__ import annotations

import sys
from pathlib import Path

from e2e.kind.binaries import build_programs
from e2e.kind.cluster import NAME
from e2e.kind.command import Step, run
from e2e.kind.places import Places

_IMAGES_SCRIPT = Path(__file__).parents[2] / "hack" / "images.py"
_ON_A_NODE = ("ctr", "--namespace=k8s.io", "images")
_BUILT_SECONDS = 1800.0


def ensure_spark_image(places: Places, repository: str) -> str:
    """Build the image and put it into every node that lacks it; return its name there.

    The name tells the content, so that a changed image is never taken for the one that is there.
    """
    env, spark = places.environment(), f"{repository}-spark"
    with Step("building the Spark image"):
        command = [sys.executable, str(_IMAGES_SCRIPT), "--tag", "e2e", "spark"]
        run(command, env=env, timeout_seconds=_BUILT_SECONDS)
    found = run(["docker", "image", "inspect", "--format={{.Id}}", f"{spark}:e2e"], env=env)
    image = f"{spark}:e2e-{found.strip().removeprefix('sha256:')[:12]}"
    kind = build_programs(places)["kind"]
    lacking = []
    for node in run([kind, "get", "nodes", "--name", NAME], env=env).split():
        there = run(["docker", "exec", node, *_ON_A_NODE, "list", "--quiet"], env=env).split()
        ours = [name for name in there if f"/{spark}:" in f"/{name}"]
        if any(name.endswith(image) for name in ours):
            continue
        lacking.append(node)
        if ours:
            run(["docker", "exec", node, *_ON_A_NODE, "rm", "--sync", *ours], env=env)
    if lacking:
        with Step(f"loading the Spark image into {len(lacking)} nodes"):
            _load(places, kind, f"{spark}:e2e", image, lacking)
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
