"""The only holder of a replica's lock: steps, and what is done after them."""

import threading
from collections.abc import Callable

import pytest

from rezone.datanode.state.runner import Runner, entry, entry_alone
from rezone.wire.errors import ConflictError

WAIT_SECONDS = 30.0


class Noted:
    """Notes what is done, and whether the lock was free."""

    def __init__(self) -> None:
        self.runner = Runner(self)
        self.done: list[str] = []

    def _note(self, what: str) -> None:
        free: list[bool] = []
        thread = threading.Thread(target=lambda: free.append(self._is_free()))
        thread.start()
        thread.join(WAIT_SECONDS)
        self.done.append(what if free == [True] else f"{what}, locked")

    def _is_free(self) -> bool:
        free = self.runner.lock.acquire(blocking=False)
        if free:
            self.runner.lock.release()
        return free and not self.runner.applying.locked()

    def do_send(self, *, inline: bool) -> None:
        """Note that followers are sent something."""
        self._note("send here" if inline else "send")

    def note_answer(self, outcome: str) -> None:
        """Note an answer."""
        self._note(f"answer {outcome}")

    def do_touched(self, *, at_once: bool) -> None:
        """Note a change of the report."""
        self._note("report at once" if at_once else "report")

    def do_restream(self) -> None:
        """Note a look at the stream."""
        self._note("stream")

    def do_run(self, *, inline: bool) -> None:
        """Note a run of the job."""
        self._note("run here" if inline else "run")


class Part:
    """A part of a replica with two ways in."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    @entry
    def change(self, what: Callable[[Runner], None]) -> str:
        """Do something in a step."""
        what(self.runner)
        return "done"

    @entry_alone
    def change_alone(self, what: Callable[[Runner], None]) -> None:
        """Do something in a step while nothing is applied."""
        what(self.runner)


@pytest.fixture
def noted() -> Noted:
    """Return what notes the deeds."""
    return Noted()


@pytest.fixture
def part(noted: Noted) -> Part:
    """Return a part."""
    return Part(noted.runner)


def all_of_it(runner: Runner) -> None:
    """Ask for everything but answers, some of it twice."""
    runner.run(inline=True)
    runner.send()
    runner.send(inline=True)
    runner.restream()
    runner.touched(at_once=True)
    runner.touched(at_once=False)
    runner.restream()


def test_what_a_step_asks_for_is_done_once_and_without_the_lock(noted: Noted, part: Part) -> None:
    """Who waits for the lock would wait for a network, and two replicas for each other."""
    assert part.change(all_of_it) == "done"
    assert noted.done == ["send here", "report at once", "stream", "run here"]
    part.change(lambda _: None)
    assert len(noted.done) == 4, "done twice"


def test_answers_leave_after_what_they_speak_of_and_without_the_lock(
    noted: Noted, part: Part
) -> None:
    """A client's answer would wait for a lock, or a replica stand still after one that fails."""

    def broken(_: str) -> None:
        raise ZeroDivisionError

    def answers(runner: Runner) -> None:
        runner.run(inline=False)
        runner.answer(noted.note_answer, "first")
        runner.answer(noted.note_answer, "second")
        runner.answer(broken, "third")
        runner.send()

    with pytest.raises(ZeroDivisionError):
        part.change(answers)
    assert noted.done == ["send", "answer first", "answer second", "run"]


def test_a_step_is_not_begun_where_another_thread_has_the_lock_for_long(
    noted: Noted, part: Part
) -> None:
    """The thread that ticks for all replicas would wait for the disk of one."""
    begun: list[bool] = []

    def try_another(_: Runner) -> None:
        thread = threading.Thread(target=lambda: begun.append(noted.runner.begin(0)))
        thread.start()
        thread.join(WAIT_SECONDS)

    part.change(try_another)
    assert begun == [False]
    assert noted.runner.begin(0)
    noted.runner.run(inline=False)
    noted.runner.end()
    assert noted.done == ["run"]


def test_a_step_within_a_step_belongs_to_it(noted: Noted, part: Part) -> None:
    """What the inner one asks for would be done with the lock of the outer one held."""

    def nested(runner: Runner) -> None:
        part.change(all_of_it)
        assert noted.done == []
        runner.run(inline=False)

    part.change(nested)
    # Before the stream, whose messages may block: a new leader's first sync is in the job.
    assert noted.done == ["send here", "report at once", "run", "stream"], "one was in haste"


def test_a_step_that_is_refused_does_what_it_has_asked_for(noted: Noted, part: Part) -> None:
    """A replica that has failed in a step would not be reported."""

    def refused(runner: Runner) -> None:
        runner.touched(at_once=True)
        raise ConflictError("refused")

    with pytest.raises(ConflictError):
        part.change(refused)
    assert noted.done == ["report at once"]
    assert not noted.runner.steps


def test_outside_of_a_step_all_is_done_at_once(noted: Noted) -> None:
    """What a thread without the lock asks for would wait for the next step."""
    all_of_it(noted.runner)
    noted.runner.answer(noted.done.append, "answer")
    told = ["run here", "send", "send here", "stream", "report at once", "report", "stream"]
    assert noted.done == [*told, "answer"]


def test_a_step_of_another_thread_is_not_this_one_s(noted: Noted, part: Part) -> None:
    """What this thread asks for would be done by one that may be stuck at a disk."""
    inside, go = threading.Event(), threading.Event()

    def stuck(_: Runner) -> None:
        inside.set()
        assert go.wait(WAIT_SECONDS)

    thread = threading.Thread(target=part.change, args=(stuck,))
    thread.start()
    try:
        assert inside.wait(WAIT_SECONDS)
        noted.runner.restream()
        assert noted.done == ["stream, locked"]
    finally:
        go.set()
        thread.join(WAIT_SECONDS)


def test_a_step_alone_keeps_the_job_from_applying(noted: Noted, part: Part) -> None:
    """The log would be cut under what is being applied."""
    part.change_alone(lambda runner: noted.done.append(str(runner.applying.locked())))
    assert noted.done == ["True"]
    assert not noted.runner.applying.locked()


def test_what_a_step_alone_asks_for_is_done_without_both_locks(noted: Noted, part: Part) -> None:
    """The job would stand still while a message is sent."""
    part.change_alone(all_of_it)
    assert noted.done == ["send here", "report at once", "stream", "run here"]
