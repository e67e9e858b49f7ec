"""Completion by shells, and the plugin of kubectl that krew installs."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner

from rezone.cli.completion import KUBECTL
from rezone.cli.main import main

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 30


@pytest.mark.parametrize(
    ("shell", "says"),
    [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")],
)
def test_each_shell_gets_its_script(shell: str, says: str) -> None:
    """People would type each option of each command."""
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert says in done.output
    assert f"_REZONE_COMPLETE={shell}_complete" in done.output


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """Return an environment with `rezone` on its PATH."""
    program = tmp_path / "bin" / "rezone"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" -c '
        '\'from rezone.cli.main import main; main(prog_name="rezone")\' "$@"\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": ":".join(sys.path)}


@pytest.mark.slow
def test_bash_completes_commands(on_path: dict[str, str]) -> None:
    """A script that the shell takes and that completes nothing would go unseen."""
    words = {"COMP_WORDS": "rezone expl", "COMP_CWORD": "1", "_REZONE_COMPLETE": "bash_complete"}
    done = subprocess.run(
        ["rezone"],
        env={**on_path, **words},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert done.stdout == "plain,explain-wait\n"


@pytest.mark.slow
def test_kubectl_completes_the_plugin(on_path: dict[str, str], tmp_path: Path) -> None:
    """`kubectl rezone pro<TAB>` would offer files."""
    script = tmp_path / "bin" / "kubectl_complete-rezone"
    script.write_text(KUBECTL)
    script.chmod(0o755)
    done = subprocess.run(
        [script, "progress", "--wa"],
        env=on_path,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert done.stdout == "--watch\n:4\n"


@pytest.fixture
def krew(hack: Callable[[str], ModuleType]) -> ModuleType:
    """Return hack/krew.py."""
    return hack("krew")


@pytest.fixture
def wheel(krew: ModuleType, tmp_path: Path) -> Path:
    """Return what stands for the package's wheel."""
    path = tmp_path / f"rezone-{krew.version()}-py3-none-any.whl"
    path.write_bytes(b"wheel")
    return path


def test_the_manifest_keeps_krews_rules(krew: ModuleType, wheel: Path) -> None:
    """krew-index would refuse it, or krew refuse to install it on every machine.

    The rules are those of krew's validation and its guide for plugins.
    """
    packed = krew.archive(wheel)
    written = krew.written_form(krew.manifest(packed, "https://x.example/v1/", "https://x.example"))
    assert "description: |\n" in written
    found = yaml.safe_load(written)
    assert found["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert found["kind"] == "Plugin"
    assert re.fullmatch(r"[\w-]+", found["metadata"]["name"])
    spec = found["spec"]
    assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(spec) == {
        *("version", "homepage", "shortDescription", "description", "caveats", "platforms"),
    }
    assert spec["version"] == f"v{krew.version()}"
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", spec["version"])
    short = spec["shortDescription"]
    assert "\n" not in short
    assert 0 < len(short) <= 50
    assert not short.endswith(".")
    assert max(map(len, (spec["description"] + spec["caveats"]).splitlines())) <= 80
    for platform in spec["platforms"]:
        assert platform["uri"].startswith("https://")
        assert platform["uri"].endswith((".tar.gz", ".zip"))
        assert krew.version() in platform["uri"]
        assert platform["sha256"] == hashlib.sha256(packed).hexdigest()
        (rule,) = platform["selector"]["matchExpressions"]
        assert rule["key"] in {"os", "arch"}
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            names = tar.getnames()
        assert platform["bin"] in names
        assert any(name.startswith("LICENSE") for name in names)


def test_the_archive_is_the_same_for_the_same_wheel(krew: ModuleType, wheel: Path) -> None:
    """Its digest stands in a manifest that others review: it must be possible to make it again."""
    assert krew.archive(wheel) == krew.archive(wheel)
    other = wheel.with_name("rezone-9.9.9-py3-none-any.whl")
    other.write_bytes(b"")
    with pytest.raises(ValueError, match="no wheel of rezone"):
        krew.archive(other)


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["uv", "pipx", ""])
def test_the_plugin_runs_its_wheel_by_the_link_that_krew_makes(
    krew: ModuleType, wheel: Path, tmp_path: Path, runner: str
) -> None:
    """Krew links the program: next to the link there is no wheel."""
    store = tmp_path / "store"
    with tarfile.open(fileobj=io.BytesIO(krew.archive(wheel))) as tar:
        tar.extractall(store, filter="data")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("dirname", "readlink", "sh"):
        (tools / name).symlink_to(next(p for p in map(Path, _places(name)) if p.exists()))
    (tools / "kubectl-rezone").symlink_to("../store/kubectl-rezone")
    if runner:
        (tools / runner).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tools / runner).chmod(0o755)
    done = subprocess.run(
        [tools / "kubectl-rezone", "map", "a b"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    if not runner:
        assert done.returncode == 127
        assert "needs uv" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert f"rezone[operator] @ file://{store.resolve()}/{wheel.name}" in said
    assert said[-3:] == ["kubectl-rezone", "map", "a b"]


def _places(name: str) -> list[str]:
    return [f"/usr/bin/{name}", f"/bin/{name}"]
