"""Which certificate authorities uv and pip trust in `hack/environment.sh`, and images' builds."""

import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

HACK = Path(__file__).parents[1] / "hack"
SCRIPT = HACK / "environment.sh"
TOLD = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "UV_SYSTEM_CERTS")
# Stands for uv, and for the Python that installs it: says what it was given.
SAYS = (
    '#!/bin/sh\n[ "$3" != config ] || exit 1\necho "$0 $UV_SYSTEM_CERTS $UV_NATIVE_TLS $PIP_CERT"\n'
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Give a checkout with the script, and programs that say what they were given."""
    hack, programs = tmp_path / "hack", tmp_path / ".venv" / "bin"
    hack.mkdir()
    programs.mkdir(parents=True)
    shutil.copy(SCRIPT, hack)
    for name in ("python", "uv"):
        (programs / name).write_text(SAYS)
        (programs / name).chmod(0o755)
    dirname = shutil.which("dirname")
    assert dirname is not None
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "dirname").symlink_to(dirname)
    return tmp_path


def run(checkout: Path, *, has_uv: bool = False, **told: str) -> list[list[str]]:
    """Run the script with nothing told of authorities but this; return what programs said."""
    found = [checkout / "path", *([checkout / ".venv" / "bin"] if has_uv else [])]
    environment = {k: v for k, v in os.environ.items() if k not in TOLD} | told
    environment["PATH"] = ":".join(map(str, found))
    script = checkout / "hack" / SCRIPT.name
    done = subprocess.run(
        ["/bin/bash", script], env=environment, capture_output=True, text=True, check=True
    )
    said = [line for line in done.stdout.splitlines() if not line.startswith("rezone:")]
    return [[*line.split(), "", ""][:4] for line in said]


def test_uv_trusts_the_authorities_of_the_system(checkout: Path) -> None:
    """Asserts that uv is told to, also the uv that a machine has.

    Without it `make` ends with UnknownIssuer behind a proxy with an authority of its own.
    """
    (uv,) = run(checkout, has_uv=True)
    assert uv[1:3] == ["true", "true"]


def test_pip_trusts_the_authorities_of_the_system(checkout: Path) -> None:
    """Asserts that pip, which brings uv along, gets a list of authorities.

    Without it the same proxy stops `make` one step earlier.
    """
    authorities = checkout / "authorities.crt"
    authorities.touch()
    pip, uv = run(checkout, SSL_CERT_FILE=str(authorities))
    assert pip[0].endswith("python")
    assert pip[3] == str(authorities)
    assert uv[0].endswith("uv")


def test_what_was_told_stays(checkout: Path) -> None:
    """Asserts that a person's own choice is not overridden.

    Without it a machine whose system list is out of date cannot be told of another one.
    """
    pip, uv = run(checkout, REQUESTS_CA_BUNDLE="/theirs", UV_SYSTEM_CERTS="false")
    assert pip[3] == ""
    assert uv[1:3] == ["false", "false"]


def test_builds_of_images_trust_the_authorities_of_the_system(tmp_path: Path) -> None:
    """Asserts that a build gets the system's list where no other one is told.

    Without it `make images` ends with UnknownIssuer behind a proxy.
    """
    build_command = runpy.run_path(str(HACK / "images.py"))["build_command"]
    system, told = tmp_path / "system.crt", tmp_path / "told.crt"
    system.touch()
    told.touch()
    build_command.__globals__["SYSTEM_AUTHORITIES"] = str(system)
    assert f"id=ca,src={system}" in build_command("docker", "spark", "name", "base", {})
    given = {"SSL_CERT_FILE": str(told)}
    assert f"id=ca,src={told}" in build_command("docker", "spark", "name", "base", given)
