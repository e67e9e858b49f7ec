"""Builds Rezone's images and writes each as an archive: what `make images` runs.

    images.py [--output DIRECTORY] [--tag TAG] [--base IMAGE] [--twice] [target ...]

Needs a Docker daemon with BuildKit (any since 20.10) and a package index, but no image registry:
where the base image cannot be pulled, root makes one from Debian's packages with debootstrap. The
way to the package index is that of this process: proxies, index, and the certificate authorities of
its environment or of this system.

`--twice` builds again with nothing reused and compares the layers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPOSITORY = "rezone-dev/rezone"
# Target of the Dockerfile -> the image's name, as the chart has it by default.
IMAGES = {
    "operator": REPOSITORY,
    "data-node": f"{REPOSITORY}-data-node",
    "spark": f"{REPOSITORY}-spark",
}
BASE = "debian:bookworm-slim"
MADE_BASE = "rezone-base/debian:bookworm"
SUITE = "bookworm"
PULL_SECONDS = 300.0
BUILDKIT_IN_CLIENT_UNTIL = 23
# Of this process's environment, what the builder needs to get packages the same way.
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
PASSED = (*PROXIES, *(name.upper() for name in PROXIES), "PIP_INDEX_URL", "UV_DEFAULT_INDEX")
AUTHORITIES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# In which a proxy's own authority is, where nothing else is said.
SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


class ImageError(Exception):
    """Something that building needs is not there; the text says what to do."""


def say(line: str) -> None:
    """Tell the person at the shell what is going on."""
    sys.stderr.write(f"images: {line}\n")
    sys.stderr.flush()


def find_docker() -> str:
    """Return a docker client that can build with BuildKit; ImageError if none can.

    Clients before 23 bring it themselves, later ones need the plugin buildx; a machine may have
    several, of which only one is complete.
    """
    directories = os.get_exec_path()
    clients = [path for each in directories if (path := shutil.which("docker", path=each))]
    for client in clients:
        version = _output(client, "version", "--format", "{{.Client.Version}}")
        if not version:
            raise ImageError("no Docker daemon answers: start one, or set DOCKER_HOST")
        if int(version.split(".")[0]) < BUILDKIT_IN_CLIENT_UNTIL or _succeeds(
            client, "buildx", "version"
        ):
            return client
    raise ImageError("no docker client with BuildKit is on PATH: install docker and docker-buildx")


def ensure_base(docker: str, wanted: str) -> str:
    """Return the base image: `wanted` if it is there or can be pulled, else one made here."""
    if _succeeds(docker, "image", "inspect", wanted):
        return wanted
    say(f"pulling {wanted}")
    if _succeeds(docker, "pull", wanted, timeout_seconds=PULL_SECONDS):
        return wanted
    if not _succeeds(docker, "image", "inspect", MADE_BASE):
        _make_base(docker, wanted)
    return MADE_BASE


def _make_base(docker: str, wanted: str) -> None:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise ImageError(
            f"{wanted} cannot be pulled; root can make a base with debootstrap (apt-get install)"
        )
    say(f"{wanted} cannot be pulled: making a base of Debian packages (under a minute)")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        subprocess.run(
            ["debootstrap", "--variant=minbase", SUITE, root], check=True, stdout=subprocess.DEVNULL
        )
        pack = ["tar", "--directory", str(root), "--create"]
        skipped = [f"--exclude=./{each}/*" for each in ("proc", "sys", "dev", "var/cache/apt")]
        with subprocess.Popen([*pack, *skipped, "."], stdout=subprocess.PIPE) as packing:
            subprocess.run(
                [docker, "import", "-", MADE_BASE],
                check=True,
                stdin=packing.stdout,
                stdout=subprocess.DEVNULL,
            )


def build_command(
    docker: str, target: str, image: str, base: str, environment: Mapping[str, str]
) -> list[str]:
    """Return the command that builds one image with this process's way to the package index."""
    passed = [f"{name}={environment[name]}" for name in PASSED if environment.get(name)]
    arguments = [f"BASE={base}", *passed]
    secrets: list[str] = []
    given = (environment[name] for name in AUTHORITIES if environment.get(name))
    authority = next(given, SYSTEM_AUTHORITIES)
    if Path(authority).is_file():
        secrets = ["--secret", f"id=ca,src={authority}"]
        arguments.append("SSL_CERT_FILE=/run/secrets/ca")
    return [
        *(docker, "build", "--progress=plain", "--network=host"),
        *("--target", target, "--tag", image),
        *(word for each in arguments for word in ("--build-arg", each)),
        *secrets,
        str(ROOT),
    ]


def build(docker: str, target: str, image: str, base: str, *, again: bool = False) -> None:
    """Build one image; its output is shown only if that fails, with ImageError."""
    command = build_command(docker, target, image, base, os.environ)
    if again:
        command.insert(2, "--no-cache")
    started = time.monotonic()
    say(f"building {image} ...")
    done = subprocess.run(
        command,
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise ImageError(f"building {image} failed:\n{done.stdout[-6000:]}")
    size = int(_output(docker, "image", "inspect", "--format", "{{.Size}}", image))
    say(f"{image}: {size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")


def save(docker: str, image: str, archive: Path) -> None:
    """Write an image as an archive; an archive that is there is whole."""
    partial = archive.with_suffix(".partial")
    subprocess.run([docker, "save", "--output", partial, image], check=True)
    partial.rename(archive)
    say(f"wrote {archive}")


def layers(docker: str, image: str) -> list[str]:
    """Return the digests of an image's layers."""
    found: list[str] = json.loads(
        _output(docker, "image", "inspect", "--format", "{{json .RootFS.Layers}}", image)
    )
    return found


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _succeeds(*command: str, timeout_seconds: float = 60.0) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _make(given: argparse.Namespace) -> None:
    docker = find_docker()
    base = ensure_base(docker, given.base)
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
    for target in given.targets or IMAGES:
        image = f"{IMAGES[target]}:{given.tag}"
        build(docker, target, image, base)
        if given.twice:
            first = layers(docker, image)
            build(docker, target, image, base, again=True)
            if layers(docker, image) != first:
                raise ImageError(f"{image}: a second build made other layers")
            say(f"{image}: a second build made the same {len(first)} layers")
        if given.output:
            save(docker, image, given.output / f"{Path(IMAGES[target]).name}.tar")


def _version() -> str:
    chart = (ROOT / "charts" / "rezone" / "Chart.yaml").read_text().splitlines()
    return next(line.split()[1] for line in chart if line.startswith("appVersion:"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(description="Build Rezone's images.")
    parser.add_argument("--output", type=Path, help="write archives into this directory")
    parser.add_argument("--tag", default=_version(), help="default: the chart's appVersion")
    parser.add_argument("--base", default=BASE, help="the image to stand on")
    parser.add_argument("--twice", action="store_true", help="compare with a second build")
    parser.add_argument("targets", nargs="*", metavar="target", choices=[[], *IMAGES])
    try:
        _make(parser.parse_args(arguments))
    except (ImageError, subprocess.CalledProcessError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
