"""House rules that no linter knows; each names the file that breaks it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "operator" / "rezone"
FUNCTION_LINES_MAX = 75


def sources() -> list[Path]:
    """Return the modules of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_the_source_root_is_no_package() -> None:
    """operator/__init__.py would shadow the standard library's operator module."""
    assert not (ROOT / "operator" / "__init__.py").exists()


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_functions_are_short(path: Path) -> None:
    """A function that fills more than a screen hides what it decides."""
    long = {
        node.name: lines
        for node in functions(path)
        if (lines := (node.end_lineno or 0) - node.lineno) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_nothing_private_of_kopf_is_used() -> None:
    """Kopf's underscored modules change without notice."""
    assert [p for p in sources() if re.search(r"kopf\._|from kopf import _", p.read_text())] == []


def test_the_clock_is_read_in_adapters_only() -> None:
    """A decision that reads the clock itself cannot be replayed."""
    pure = [*(PACKAGE / "domain").rglob("*.py"), *(PACKAGE / "resources").rglob("*.py")]
    assert [
        p for p in pure if re.search(r"datetime\.now|time\.time|monotonic\(", p.read_text())
    ] == []


def test_every_module_tells_what_it_is() -> None:
    """A reader could not guess a module's subject."""
    assert [p for p in sources() if ast.get_docstring(ast.parse(p.read_text())) is None] == []


def test_every_test_says_what_would_break() -> None:
    """A test without a reason is kept or deleted for the wrong one."""
    missing = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for folder in ("tests", "e2e")
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        for node in functions(path)
        if node.name.startswith("test_") and ast.get_docstring(node) is None
    ]
    assert missing == []
