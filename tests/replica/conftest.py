"""What the tests of a data node get: the order in which its threads take locks is looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lock_order import LockOrder, recording

_ORDER = LockOrder()


@pytest.fixture(autouse=True)
def _locks_have_an_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail where locks were taken in an order that contradicts that of this or any other test."""
    recording(_ORDER, monkeypatch.setattr)
    known = len(_ORDER.first)
    yield
    if len(_ORDER.first) > known:
        told = [_ORDER.tell(circle) for circle in _ORDER.contradictions()]
        assert not told, "\n\n".join(told)
