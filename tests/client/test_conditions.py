"""What a conditional write concludes from what it has read and from how it was refused."""

import pytest

from rezone.client import VersionMismatchError
from rezone.client.operations.conditional import Condition
from rezone.wire.errors import TransactionConflictError

ROW = {"id": 7}
READ_AT = 100


def test_a_row_written_after_it_was_read_is_read_once_more() -> None:
    """What is told of the present row would be of another version than the one it names."""
    later = TransactionConflictError("", version=READ_AT + 1)
    Condition(50).require_unchanged(later, ROW, READ_AT)
    Condition(READ_AT + 5).require_unchanged(TransactionConflictError("", version=101), ROW, 100)
    locked = TransactionConflictError("another transaction has written it")
    Condition(50).require_unchanged(locked, ROW, READ_AT)
    Condition(None).require_unchanged(later, None, READ_AT)


def test_a_row_written_before_it_was_read_has_another_version() -> None:
    """The write would be tried until its deadline, and could never succeed."""
    with pytest.raises(VersionMismatchError) as written:
        Condition(50).require_unchanged(TransactionConflictError("", version=READ_AT), ROW, READ_AT)
    assert (written.value.row, written.value.version) == (ROW, READ_AT)


def test_a_version_of_before_a_re_sharding_is_told_so() -> None:
    """A leader that took the row over cannot compare it: the write would be tried in vain."""
    with pytest.raises(VersionMismatchError, match="re-sharded") as old:
        Condition(50).require_unchanged(TransactionConflictError("", sealed=60), ROW, READ_AT)
    assert old.value.version == READ_AT
