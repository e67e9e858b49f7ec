"""Runs the steps of one replica: the only holder of its lock, and of what it applies.

A method that anybody may call from outside is a way in (`entry`): it waits for the lock and runs as
one step. What a step notes to be done after it (send what was appended, answer, report the replica,
have its job run, fit its stream) is done once the lock is let go, in this order, each but an answer
once, whatever the step has raised. A run that this thread may do itself comes last. So the parts of
a replica take no lock, and need not know whether their caller has it. No step waits for `changed`:
that would let others step within it.

An entry that is called within a step belongs to that step. What is noted outside of one is done at
once.

Lock order: `applying`, then `lock`, then those of channels.
"""

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Deeds(Protocol):
    """What is done for a replica after its steps, without its lock."""

    def do_send(self, *, inline: bool) -> None:
        """Send the followers what was appended: by this thread, if that is `inline`."""
        ...

    def do_touched(self, *, at_once: bool) -> None:
        """Note that the report has changed."""
        ...

    def do_restream(self) -> None:
        """Make the stream from the leader fit the state."""
        ...

    def do_run(self, *, inline: bool) -> None:
        """Have the job run: by this thread, if that is `inline`."""
        ...


class Due(NamedTuple):
    """What is to be done after a step: see `Deeds`; None and False: nothing."""

    send: bool | None
    answers: list[Callable[[], None]]
    touched: bool | None
    restream: bool
    run: bool | None


class Runner:
    """The lock of one replica, the thread that has a step under way, and what is due after it."""

    def __init__(self, deeds: Deeds) -> None:
        self._deeds = deeds
        self.lock = threading.RLock()
        self.applying = threading.Lock()
        self._thread = 0
        self._depth = 0
        self._is_due = False
        self._forget_due()

    def _forget_due(self) -> None:
        self._is_due = False
        self._send: bool | None = None
        self._answers: list[Callable[[], None]] = []
        self._touched: bool | None = None
        self._restream = False
        self._run: bool | None = None

    @property
    def steps(self) -> bool:
        """Whether the calling thread has a step under way."""
        return self._thread == threading.get_ident()

    def begin(self, seconds: float = -1) -> bool:
        """Begin a step, or belong to the one that this thread has begun.

        False where the lock was not free for so many seconds; without that it is waited for.
        """
        if not self.lock.acquire(timeout=seconds):
            return False
        self._depth += 1
        self._thread = threading.get_ident()
        return True

    def end(self) -> None:
        """End a step: let the lock go, then do what is due."""
        due = self.leave()
        if due is not None:
            self.do(due)

    def leave(self) -> Due | None:
        """End a step: let the lock go; return what is due, if that was the outermost one."""
        self._depth -= 1
        if self._depth:
            self.lock.release()
            return None
        self._thread = 0
        due = None
        if self._is_due:
            due = Due(self._send, self._answers, self._touched, self._restream, self._run)
            self._forget_due()
        self.lock.release()
        return due

    def do(self, due: Due) -> None:
        """Do what is due after a step. The caller holds no lock of the replica."""
        if due.send is not None:
            self._deeds.do_send(inline=due.send)
        try:
            for answer in due.answers:
                answer()
        finally:
            self._do_rest(due)

    def _do_rest(self, due: Due) -> None:
        if due.touched is not None:
            self._deeds.do_touched(at_once=due.touched)
        if due.run is False:
            # Before the stream, whose messages may block: a new leader's first sync is in the job.
            self._deeds.do_run(inline=False)
        if due.restream:
            self._deeds.do_restream()
        if due.run:
            self._deeds.do_run(inline=True)

    # --- what parts ask for ----------------------------------------------------------------------

    def send(self, *, inline: bool = False) -> None:
        """Have what was appended sent; by this thread if any that asks in a step has time."""
        if self.steps:
            self._is_due, self._send = True, bool(self._send) or inline
        else:
            self._deeds.do_send(inline=inline)

    def answer(self, reply: Callable[[T], None], outcome: T) -> None:
        """Have `reply` called with an outcome."""
        if self.steps:
            self._is_due = True
            self._answers.append(functools.partial(reply, outcome))
        else:
            reply(outcome)

    def touched(self, *, at_once: bool) -> None:
        """Have the report told that the replica has changed."""
        if self.steps:
            self._is_due, self._touched = True, bool(self._touched) or at_once
        else:
            self._deeds.do_touched(at_once=at_once)

    def restream(self) -> None:
        """Have the stream from the leader fit the state."""
        if self.steps:
            self._is_due = self._restream = True
        else:
            self._deeds.do_restream()

    def run(self, *, inline: bool) -> None:
        """Have the job run; by this thread only if all that ask in a step leave it to that."""
        if self.steps:
            self._is_due = True
            self._run = inline if self._run is None else self._run and inline
        else:
            self._deeds.do_run(inline=inline)


class HasRunner(Protocol):
    """A part of a replica: it knows by whom its steps are run."""

    @property
    def runner(self) -> Runner:
        """The replica's runner."""
        ...


S = TypeVar("S", bound=HasRunner)


def entry(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method of a part a way in: it runs as a step, under the replica's lock."""

    def enter(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        runner = self.runner
        runner.begin()
        try:
            return method(self, *args, **kwargs)
        finally:
            due = runner.leave()
            if due is not None:
                runner.do(due)

    functools.update_wrapper(enter, method)
    return enter


def entry_alone(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a method a way in that waits until nothing is applied, and keeps that so."""

    def enter(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        runner, due = self.runner, None
        try:
            with runner.applying:
                runner.begin()
                try:
                    return method(self, *args, **kwargs)
                finally:
                    due = runner.leave()
        finally:
            if due is not None:
                runner.do(due)

    functools.update_wrapper(enter, method)
    return enter
