"""What should not happen: told at a bounded rate, survived by threads, and not told to callers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyarrow import flight
from replica_cluster import Client, cluster
from structlog.testing import capture_logs

from rezone.datanode.scheduling.error_log import SAY_SECONDS, UNEXPECTED, ErrorLog
from rezone.datanode.scheduling.foreground import Foreground, Requests
from rezone.datanode.scheduling.requests import Request, Result
from rezone.datanode.settings import SystemClock
from rezone.wire import messages
from rezone.wire.messages import StatisticsRequest

P = 0
NOTHING = Request(None, 0.0)


@pytest.mark.proves("TR-03")
def test_a_subject_is_told_of_once_in_a_while_and_all_are_counted() -> None:
    """A peer that is refused a thousand times a second would fill the disk with lines."""
    now = [0.0]
    error_log = ErrorLog("refused", clock=lambda: now[0])
    with capture_logs() as told:
        for _ in range(1_000):
            error_log.note("a")
        error_log.note("b")
        now[0] = SAY_SECONDS
        error_log.note("a")
    assert [(line["subject"], line["untold"]) for line in told] == [("a", 0), ("b", 0), ("a", 999)]
    assert error_log.total == 1_002
    with capture_logs() as told:
        for number in range(10_000):
            error_log.note(str(number))
    assert len(error_log._said) <= 256, "subjects are chosen by peers"


@pytest.mark.proves("TR-03")
def test_what_a_duty_raises_does_not_end_the_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No partition of the node would be looked after again."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        failed = threading.Event()

        def fail(_now: float) -> None:
            failed.set()
            raise ValueError("a number that nobody expects")

        monkeypatch.setattr(c.node(0).hearing, "tick", fail)
        before = UNEXPECTED.total
        for _ in range(2):
            failed.clear()
            assert failed.wait(10)
        assert UNEXPECTED.total > before
        k = Client(c)
        k.put(P, {b"row": b"1"})
        k.close()
        assert c.node(0).threads.alive


@pytest.mark.proves("TR-03")
def test_a_caller_is_told_nothing_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths, lines and values of the process would travel to whoever makes a call fail."""
    with cluster(tmp_path, 1) as c:

        def fail(_request: StatisticsRequest) -> None:
            raise ValueError("secret")

        server = c.nodes[0].server  # type: ignore[union-attr]
        assert server is not None
        monkeypatch.setitem(server._control._calls, StatisticsRequest, fail)
        client = flight.connect(f"grpc://{c.nodes[0].address}")
        action = flight.Action("StatisticsRequest", messages.encode(StatisticsRequest()))
        with pytest.raises(flight.FlightError) as told:
            list(client.do_action(action))
        client.close()
    for word in ("secret", "Traceback", ".py", "ValueError"):
        assert word not in str(told.value)
    assert "internal error" in str(told.value)


def test_requests_end_with_their_connection() -> None:
    """One that was forgotten would have copies throttled for clients that are gone."""
    foreground = Foreground(SystemClock(), lambda: 80)
    one, other = Requests(foreground), Requests(foreground)
    one.begin()
    one.begin()
    other.begin()
    one.end(NOTHING, Result.OK)
    one.close()
    assert foreground.under_way == 1
    one.end(NOTHING, Result.OK)
    one.begin()
    assert foreground.under_way == 1, "an answer that comes late"
    other.end(NOTHING, Result.OK)
    assert foreground.under_way == 0
