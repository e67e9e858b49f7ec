"""The `local` commands where there is no cluster; the rest is in test_cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rezone.local.commands import default_state_dir, local


@pytest.mark.parametrize("words", [["kubeconfig"], ["add-node", "x"], ["fail-node", "x"]])
def test_no_cluster_is_told(tmp_path: Path, words: list[str]) -> None:
    """A traceback in place of "start one first" is no answer."""
    done = CliRunner().invoke(local, ["--state-dir", str(tmp_path / "s"), *words])
    assert done.exit_code == 1
    assert "rezone local up" in done.output


def test_status_of_nothing_fails(tmp_path: Path) -> None:
    """Scripts wait for the cluster by this exit code."""
    done = CliRunner().invoke(local, ["--state-dir", str(tmp_path / "s"), "status"])
    assert done.exit_code == 1
    assert "stopped" in done.output


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    """Cleaning up twice must not be an error."""
    done = CliRunner().invoke(local, ["--state-dir", str(tmp_path / "s"), "down", "--delete"])
    assert done.exit_code == 0, done.output


def test_use_kubeconfig_needs_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silently starting a local cluster would be the opposite of what was asked."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    words = ["--state-dir", str(tmp_path / "s"), "up", "--use-kubeconfig"]
    done = CliRunner().invoke(local, words)
    assert done.exit_code == 1
    assert "KUBECONFIG" in done.output
    assert not (tmp_path / "s").exists()


def test_state_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster in another place than `down` looks at would run for ever."""
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_state_dir() == Path("/x/rezone/local")
