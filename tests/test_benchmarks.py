"""Benchmarks run when somebody measures; these find one that no longer starts before that."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


FOUND = sorted(set(BENCHMARKS.glob("*/*.py")) - set(BENCHMARKS.glob("harness/*.py")))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_benchmark_starts(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it imports may have moved since; that it calls it rightly is for `make types` to see."""
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    for folder in (BENCHMARKS, path.parent):
        monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        monkeypatch.delitem(sys.modules, name)  # it finds the tests' modules for who imports it
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
