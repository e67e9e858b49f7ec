"""Histories that the end-to-end suites record of the demo's traffic, and that a bad one is told."""

from pathlib import Path

import pytest
from e2e.chaos.linear import build_checker
from e2e.histories import impossible_rows

from rezone.cli.demo.operations import Operations, RowOperation
from rezone.local.errors import MissingToolError

pytestmark = pytest.mark.proves("TR-01")


def read(key: int, value: int, call_ns: int) -> RowOperation:
    """Return a read that took 5 ns."""
    return RowOperation(key, write=False, value=value, call_ns=call_ns, return_ns=call_ns + 5)


@pytest.fixture
def checker() -> None:
    """Build the checker, or find it; skip where there is no Go."""
    try:
        build_checker()
    except MissingToolError as error:
        pytest.skip(str(error))


def test_a_write_is_an_operation_of_each_of_its_rows() -> None:
    """A row that is left out of the history, or gets another row's value, proves nothing."""
    operations = Operations()
    first = operations.begin({1: 4, 2: 7}, 10)
    operations.end(first, 20)
    operations.read([1, 3], {1: 4}, 30, 40)

    assert operations.take() == [
        RowOperation(1, write=True, value=4, call_ns=10, return_ns=20),
        RowOperation(2, write=True, value=7, call_ns=10, return_ns=20),
        RowOperation(1, write=False, value=4, call_ns=30, return_ns=40),
        RowOperation(3, write=False, value=0, call_ns=30, return_ns=40),
    ]
    assert operations.take() == []


def test_a_write_without_an_answer_is_of_unknown_end() -> None:
    """Left out, a read of its value would be called impossible; taken twice, it would be two."""
    operations = Operations()
    unanswered, given_up = operations.begin({1: 1}, 10), operations.begin({2: 1}, 11)
    operations.end(given_up, None)

    taken = operations.take()
    operations.end(unanswered, 50)

    assert [(each.key, each.return_ns) for each in taken] == [(2, None), (1, None)]
    assert operations.take() == []


@pytest.mark.usefixtures("checker")
def test_a_lost_write_is_told(tmp_path: Path) -> None:
    """A suite that checks histories and cannot fail would be no evidence."""
    operations = Operations()
    operations.end(operations.begin({1: 1, 2: 1}, 10), 20)
    history = [*operations.take(), read(1, 1, 30), read(2, 0, 30)]

    (found,) = impossible_rows(history, tmp_path / "pictures")

    assert found.startswith("row 2 has an impossible history")
    assert (tmp_path / "pictures" / "row-2.html").exists()


@pytest.mark.usefixtures("checker")
def test_a_write_of_unknown_end_explains_a_read(tmp_path: Path) -> None:
    """Unknown writes that count as refused would make each lost connection a violation."""
    operations = Operations()
    operations.end(operations.begin({1: 1}, 10), 20)
    operations.end(operations.begin({1: 2}, 21), None)

    history = [*operations.take(), read(1, 1, 30), read(1, 2, 40)]

    assert impossible_rows(history, tmp_path) == []


@pytest.mark.usefixtures("checker")
def test_no_history_is_no_evidence(tmp_path: Path) -> None:
    """Traffic that records nothing would pass as if all of it had been checked."""
    assert impossible_rows([], tmp_path) == ["0 of 0 operations were checked"]
