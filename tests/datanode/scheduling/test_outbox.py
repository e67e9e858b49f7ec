"""Sending by whoever has something, and jobs run by whoever has time: nothing asked for is lost."""

import threading
from collections import deque

import pytest

from rezone.datanode.scheduling import inline_sends
from rezone.datanode.scheduling.outbox import Outbox
from rezone.datanode.scheduling.workers import Job, JobState, Workers

PATIENCE_SECONDS = 30


class Sender:
    """An owner of an outbox: a queue, what was sent by which thread, and a gate to block at."""

    def __init__(self) -> None:
        self.queue: deque[int] = deque()
        self.sent: list[tuple[int, str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.may_here = True
        self.sending = threading.Lock()
        self.outbox = Outbox("own", send_next=self.send_next, may_send_here=lambda: self.may_here)
        self.outbox.start()

    def send_next(self) -> bool:
        """Send one; two at once would mix up frames."""
        assert self.sending.acquire(blocking=False)
        try:
            if not self.queue:
                return False
            number = self.queue.popleft()
            self.entered.set()
            assert self.gate.wait(PATIENCE_SECONDS)
            self.sent.append((number, threading.current_thread().name))
            return True
        finally:
            self.sending.release()

    def put(self, number: int, *, here: bool) -> None:
        """Queue and ask."""
        self.queue.append(number)
        self.outbox.ask(here=here)


def test_the_asking_thread_sends_only_when_it_may() -> None:
    """A thread that must not block would wait for a consumer that has stopped reading."""
    sender = Sender()
    sender.put(1, here=True)
    assert sender.sent == [(1, threading.current_thread().name)]
    sender.may_here = False
    sender.put(2, here=True)
    sender.may_here = True
    sender.put(3, here=False)
    sender.outbox.close()
    assert sorted(sender.sent[1:]) == [(2, "own"), (3, "own")]
    sender.put(4, here=True)
    assert len(sender.sent) == 3, "a channel that has ended is written to"


def test_what_is_asked_for_while_another_sends_is_sent_by_that_one() -> None:
    """An entry would lie until the next one comes, and its write with it."""
    sender = Sender()
    sender.gate.clear()
    sender.put(1, here=False)
    assert sender.entered.wait(PATIENCE_SECONDS)
    sender.put(2, here=True)
    sender.put(3, here=False)
    assert sender.sent == []
    sender.gate.set()
    sender.outbox.close()
    assert sender.sent == [(1, "own"), (2, "own"), (3, "own")]


def test_many_threads_lose_nothing() -> None:
    """A lost wake would hang a stream."""
    sender = Sender()

    def put_all(base: int) -> None:
        for number in range(base, base + 300):
            sender.put(number, here=bool(number % 3))

    threads = [threading.Thread(target=put_all, args=(base,)) for base in range(0, 2400, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    sender.outbox.close()
    assert sorted(number for number, _ in sender.sent) == list(range(2400))


@pytest.mark.parametrize("busy", [False, True])
def test_a_job_is_run_here_unless_another_runs_it(*, busy: bool) -> None:
    """A job would run twice at once, or a wake be lost while somebody else runs it."""
    workers = Workers(1, "worker")
    runs: list[str] = []
    gate, entered, over = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        runs.append(threading.current_thread().name)
        if len(runs) == 1 + busy:
            over.set()
        if busy and len(runs) == 1:
            entered.set()
            assert gate.wait(PATIENCE_SECONDS)

    job = Job("job", run)
    if busy:
        workers.wake(job)
        assert entered.wait(PATIENCE_SECONDS)
    workers.run_here(job)
    if busy:
        assert runs == ["worker-0"]
        gate.set()
    assert over.wait(PATIENCE_SECONDS)
    workers.close(PATIENCE_SECONDS)
    assert job.state is JobState.IDLE
    here = threading.current_thread().name
    assert runs == (["worker-0", "worker-0"] if busy else [here])


def test_a_job_that_wakes_itself_does_not_keep_a_lent_thread() -> None:
    """A connection's reading thread would never read again."""
    workers = Workers(1, "worker")
    runs: list[str] = []
    over = threading.Event()

    def run() -> None:
        runs.append(threading.current_thread().name)
        if len(runs) < 10:
            workers.wake(job)
        else:
            over.set()

    job = Job("job", run)
    workers.run_here(job)
    assert over.wait(PATIENCE_SECONDS)
    workers.close(PATIENCE_SECONDS)
    assert 0 < runs.count(threading.current_thread().name) <= 3
    assert runs[-1] == "worker-0"


@pytest.mark.proves("TR-03")
def test_an_answer_leaves_when_its_thread_has_let_its_locks_go() -> None:
    """A thread would wait for a network with the lock that all writes to a partition need."""
    sender = Sender()
    me = threading.current_thread().name
    with inline_sends.scope():
        with inline_sends.scope():
            sender.queue.append(1)
            sender.outbox.ask_unlocked()
        assert sender.sent == [], "an inner scope may stand within a lock of the outer one"
        inline_sends.send_now()
        assert sender.sent == [(1, me)]
        sender.queue.append(2)
        sender.outbox.ask_unlocked()
    assert sender.sent == [(1, me), (2, me)]
    sender.queue.append(3)
    sender.outbox.ask_unlocked()
    sender.outbox.close()
    assert sender.sent[2:] == [(3, "own")], "without a scope nobody knows what is held"


@pytest.mark.proves("TR-03")
def test_a_job_that_hangs_is_seen() -> None:
    """A node whose partitions stand still would pass its probes for ever."""
    workers = Workers(1, "worker")
    entered, gate = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        assert gate.wait(PATIENCE_SECONDS)

    assert workers.longest_seconds() == 0
    workers.wake(Job("hangs", hang))
    assert entered.wait(PATIENCE_SECONDS)
    assert workers.longest_seconds() > 0
    gate.set()
    workers.close(PATIENCE_SECONDS)
    assert workers.longest_seconds() == 0
