"""In which order threads take the locks of `rezone`, and whether two orders contradict each other.

A lock is known by the line that makes it: all partitions' locks are one. Whoever takes one while it
holds another has gone from that to this; where such steps lead back to where they began, there are
schedules in which threads wait for each other for ever, whether or not this run was one of them.
Locks that are only tried wait for nobody, and those of other libraries are none of ours.
"""

from __future__ import annotations

import linecache
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from rezone.wire.transport.channel import Channel

Site = str
"""Where a lock is made: module and line."""

_PACKAGE = "rezone."
_TESTS = str(Path(__file__).parent)
_STACK_FRAMES = 12


class Step(NamedTuple):
    """One lock taken while another is held."""

    held: Site
    taken: Site


class LockOrder:
    """The steps that all threads have made; `first` has the stack of the first of each kind."""

    def __init__(self) -> None:
        self.first: dict[Step, str] = {}
        self.sent_with: dict[Site, str] = {}
        self._held = threading.local()

    def _stack(self) -> list[Recorded]:
        found: list[Recorded] | None = getattr(self._held, "locks", None)
        if found is None:
            found = self._held.locks = []
        return found

    def taking(self, lock: Recorded) -> None:
        """Note that this thread is about to wait for a lock, unless it has it."""
        held = self._stack()
        if lock in held:
            return
        for each in held:
            step = Step(each.site, lock.site)
            if step not in self.first and not _is_staged():
                frames = traceback.extract_stack(sys._getframe(2), limit=_STACK_FRAMES)
                self.first[step] = "".join(traceback.format_list(frames))

    def taken(self, lock: Recorded) -> None:
        """Note that this thread has a lock."""
        self._stack().append(lock)

    def given(self, lock: Recorded) -> None:
        """Note that this thread has given a lock back; another one may have taken it."""
        held = self._stack()
        for index in range(len(held) - 1, -1, -1):
            if held[index] is lock:
                del held[index]
                return

    def sending(self, modules: frozenset[str]) -> None:
        """Note which locks of these modules this thread holds while it sends."""
        for each in self._stack():
            shared = each.site.partition(":")[0] in modules and each.name not in _OF_ONE
            if shared and not _is_staged():
                frames = traceback.extract_stack(sys._getframe(2), limit=_STACK_FRAMES)
                self.sent_with[each.site] = "".join(traceback.format_list(frames))

    def contradictions(self) -> list[tuple[Step, ...]]:
        """Return ways that lead back to where they begin; empty when there is an order."""
        following: dict[Site, set[Site]] = {}
        for step in self.first:
            following.setdefault(step.held, set()).add(step.taken)
        return list(_circles(following))

    def tell(self, circle: tuple[Step, ...]) -> str:
        """Return where each step of a circle was made first."""
        return "\n".join(
            f"{step.taken} is taken while {step.held} is held:\n{self.first[step]}"
            for step in circle
        )


def _circles(following: dict[Site, set[Site]]) -> Iterator[tuple[Step, ...]]:
    """Yield a shortest circle through each site that is on one."""
    for start in sorted(following):
        ways: dict[Site, tuple[Step, ...]] = {}
        ends = [start]
        while ends and start not in ways:
            nexts: list[Site] = []
            for site in ends:
                for after in sorted(following.get(site, ())):
                    if after not in ways:
                        ways[after] = (*ways.get(site, ()), Step(site, after))
                        nexts.append(after)
            ends = nexts
        if start in ways:
            yield ways[start]


class Recorded:
    """A lock that tells a `LockOrder` who takes it; it stands for a Lock or an RLock."""

    def __init__(self, order: LockOrder, real: Any, site: Site) -> None:
        self.site = site
        self.name = _name()
        self._order = order
        self._real = real

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT002 - as the lock's own
        """Take the lock."""
        if blocking:
            self._order.taking(self)
        taken: bool = self._real.acquire(blocking, timeout)
        if taken:
            self._order.taken(self)
        return taken

    def release(self) -> None:
        """Give the lock back."""
        self._real.release()
        self._order.given(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Whether somebody has it."""
        return bool(self._real.locked())

    # What a condition asks of an RLock: it gives it back as often as it was taken.

    def _release_save(self) -> Any:
        times = sum(each is self for each in self._order._stack())
        state = self._real._release_save() if hasattr(self._real, "_release_save") else None
        if state is None:
            self._real.release()
        for _ in range(times):
            self._order.given(self)
        return times, state

    def _acquire_restore(self, saved: Any) -> None:
        times, state = saved
        self._order.taking(self)
        if state is None:
            self._real.acquire()
        else:
            self._real._acquire_restore(state)
        for _ in range(times):
            self._order.taken(self)

    def _is_owned(self) -> bool:
        return any(each is self for each in self._order._stack())


def recording(order: LockOrder, patch: Callable[[object, str, object], None]) -> None:
    """Have every lock that `rezone` makes from now on tell its order; `patch` sets attributes."""
    real_lock, real_rlock, real_condition = threading.Lock, threading.RLock, threading.Condition

    def lock() -> Any:
        site = _site()
        return Recorded(order, real_lock(), site) if site else real_lock()

    def rlock() -> Any:
        site = _site()
        return Recorded(order, real_rlock(), site) if site else real_rlock()

    class RecordedCondition(real_condition):  # type: ignore[misc, valid-type]
        """A condition whose own lock is recorded, too."""

        def __init__(self, lock: Any = None) -> None:
            site = _site() if lock is None else ""
            super().__init__(Recorded(order, real_rlock(), site) if site else lock)

    patch(threading, "Lock", lock)
    patch(threading, "RLock", rlock)
    patch(threading, "Condition", RecordedCondition)


def _is_staged() -> bool:
    """Whether a test takes the lock itself, or stands between it and the code that holds another.

    It does in one thread then what threads do in several: no order follows from that.
    """
    frame: FrameType | None = sys._getframe(2)
    ours = False
    by_test = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(_PACKAGE):
            ours = True
            if by_test:
                return True
        elif frame.f_code.co_filename.startswith(_TESTS) and module != __name__:
            by_test = True
            if not ours:
                return True
        frame = frame.f_back
    return False


def _name() -> str:
    """Return the source line by which the caller's caller's caller makes a lock."""
    frame = sys._getframe(3)
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def _site() -> Site:
    """Return where the caller's caller makes a lock; empty when that is no code of ours."""
    frame = sys._getframe(2)
    module = str(frame.f_globals.get("__name__", ""))
    if not module.startswith(_PACKAGE):
        return ""
    return f"{Path(frame.f_code.co_filename).stem}:{frame.f_lineno}"


_ORDER = LockOrder()
WAITED_FOR = frozenset(
    {"runner", "replica", "producer", "links", "node", "known_zone", "replicas"},
)
"""Modules whose locks many threads need: nobody waits for a network who holds one (TR-03)."""

_OF_ONE = frozenset(
    {
        "self.linking = threading.Lock()",
        "self._opening = threading.Lock()",
        "return self._opening.setdefault(partition, threading.Lock())",
    }
)
"""The orders of changes of one stream, and of one replica that is opened or dropped, which end with
a word to the leader's node: its channel is timed. A client's producer is opened by one call, for
whose answer all of its others wait."""


@pytest.fixture(autouse=True)
def locks_have_an_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail where locks were taken in an order that contradicts that of this or any other test."""
    recording(_ORDER, monkeypatch.setattr)
    send = Channel.send_packed  # by which all frames leave

    def send_unlocked(channel: Channel, frame: bytes) -> None:
        _ORDER.sending(WAITED_FOR)
        send(channel, frame)

    monkeypatch.setattr(Channel, "send_packed", send_unlocked)
    known = len(_ORDER.first)
    yield
    sent_with, _ORDER.sent_with = _ORDER.sent_with, {}
    assert not sent_with, "\n\n".join(
        f"{k} is held by who sends:\n{v}" for k, v in sent_with.items()
    )
    if len(_ORDER.first) > known:
        told = [_ORDER.tell(circle) for circle in _ORDER.contradictions()]
        assert not told, "\n\n".join(told)
