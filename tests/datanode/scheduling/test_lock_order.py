"""Locks that are taken in two orders are found, whether or not the threads that do it have met."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest
from replica_cluster import OPERATOR

from lock_order import WAITED_FOR, LockOrder, recording

CODE = """
import threading

class Both:
    def __init__(self):
        self.first = threading.Lock()
        self.second = threading.Condition()
        self.third = threading.RLock()

    def there(self):
        with self.first, self.second:
            self.second.wait(0)
            with self.third, self.third:
                pass

    def back(self):
        with self.third:
            taken = self.first.acquire(blocking=False)
            if taken:
                self.first.release()

    def wrongly_back(self):
        with self.third, self.first:
            pass
"""


@pytest.fixture
def order() -> LockOrder:
    """Return what is told of the locks made here."""
    return LockOrder()


@pytest.fixture
def both(order: LockOrder, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return code that seems to be the product's, with three locks."""
    recording(order, monkeypatch.setattr)
    module = ModuleType("rezone.locks_of_a_test")
    exec(compile(CODE, "locks.py", "exec"), module.__dict__)  # noqa: S102 - of this module
    return module


def in_a_thread(act: object) -> None:
    """Call something in a thread of its own."""
    thread = threading.Thread(target=act)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_two_orders_contradict_each_other(both: ModuleType, order: LockOrder) -> None:
    """A deadlock would be found when it happens, on somebody else's machine."""
    locks = both.Both()
    in_a_thread(locks.there)
    in_a_thread(locks.back)
    assert not order.contradictions(), "a lock that is only tried waits for nobody"
    assert len(order.first) == 3
    in_a_thread(locks.wrongly_back)
    (circle, *_) = order.contradictions()
    assert len(circle) == 2
    assert "wrongly_back" in order.tell(circle)


@pytest.mark.parametrize("module", sorted(WAITED_FOR))
def test_modules_whose_locks_nobody_sends_with_make_locks(module: str) -> None:
    """A module that was renamed, or whose lock has moved, would be looked at in vain."""
    found = list((OPERATOR / "rezone" / "datanode").rglob(f"{module}.py"))
    assert any("threading.Lock()" in f.read_text() or "RLock()" in f.read_text() for f in found)
