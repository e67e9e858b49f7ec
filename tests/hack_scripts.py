"""Scripts of hack/, which are no part of a package, for tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HACK = Path(__file__).parents[1] / "hack"


@pytest.fixture
def hack(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Return a function that imports a script by its name, again for each test."""
    monkeypatch.syspath_prepend(HACK)
    yield importlib.import_module
    for script in HACK.glob("*.py"):
        sys.modules.pop(script.stem, None)
