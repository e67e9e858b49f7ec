"""What the storage tests run on: each engine, each form of a snapshot."""

from __future__ import annotations

import pytest
from storage_kit import ENGINES, FORMS

from lock_order import locks_have_an_order
from rezone.wire.messages import EngineKind

__all__ = ["form", "kind", "locks_have_an_order"]


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> EngineKind:
    """Each engine."""
    chosen: EngineKind = request.param
    return chosen


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Each form of a snapshot, on each engine that has it."""
    chosen: str = request.param
    return chosen
