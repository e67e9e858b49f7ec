"""Writes of one row that count only if nobody else has written it: compare-and-set.

Each is a transaction (`transactions`): begin, read the row, write it on condition, commit. So it
applies exactly once, whoever leads, and what nobody knows the partition can be asked for. What is
in its way for a moment, such as a transaction of somebody else or a leader transfer, is waited out:
nothing was applied then, and it begins again.

A version of a row is a time (microseconds since 1970) as of which its writer knows it: the commit
time of an acknowledged write, or the time as of which it was read. The condition holds when the row
was not written since (docs/decisions/0366).

Concurrency: any thread may call.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rezone.client.operations.single_rows import first_of
from rezone.client.operations.transactions import Transaction, TransactionCommit
from rezone.client.settings import TransactionOutcomeUnknownError, VersionMismatchError
from rezone.wire.errors import RezoneError, TransactionConflictError, TransactionEndedError
from rezone.wire.messages import TransactionOutcome, TransactionResult

Key = Mapping[str, Any]


class VersionedRow(NamedTuple):
    """A row, None when it is not there, and its version: what `if_version` compares."""

    row: dict[str, Any] | None
    version: int


class Condition(NamedTuple):
    """What must hold of a row: it was not written since a version, or it is not there (None)."""

    version: int | None

    def require(self, row: dict[str, Any] | None, read_time: int) -> None:
        """Raise VersionMismatchError when the row, as of a time, cannot have that version."""
        if (row is None) == (self.version is None):
            return
        if row is None:
            raise VersionMismatchError("the row is not there", row=None, version=None)
        raise VersionMismatchError("the row is there", row=row, version=read_time)

    def require_unchanged(
        self, conflict: TransactionConflictError, row: dict[str, Any] | None, read_time: int
    ) -> None:
        """Raise VersionMismatchError when a refused write proves that it has another version.

        It does not when the row was written after it was read here, or is locked: then it is read
        once more.
        """
        written = conflict.details.get("version")
        if self.version is None or row is None:
            return
        if "sealed" in conflict.details:
            # Its times before the partition was taken over count no more.
            raise VersionMismatchError(
                f"the partition was re-sharded after {self.version}", row=row, version=read_time
            )
        if isinstance(written, int) and self.version < written <= read_time:
            raise VersionMismatchError(
                f"the row was written at {written}, after {self.version}", row=row, version=written
            )


class ConditionalWrites:
    """Writes rows on condition; `begin` begins a transaction on a key's partition."""

    def __init__(
        self,
        begin: Callable[[Key], Transaction],
        end: Callable[[Transaction], TransactionResult],
        *,
        clock: Callable[[], float],
        pause: Callable[[int], None],
        timeout_seconds: float,
    ) -> None:
        self._begin = begin
        self._end = end
        self._clock = clock
        self._pause = pause
        self._timeout_seconds = timeout_seconds

    def change(
        self, key: Key, condition: Condition, write: Callable[[Transaction], None]
    ) -> TransactionCommit:
        """Write the row of a key (`write`) if the condition holds, exactly once.

        Raises VersionMismatchError when it does not hold; TransactionOutcomeUnknownError when
        nobody could say in time whether it was written; any RezoneError that says no.
        """
        deadline = self._clock() + self._timeout_seconds
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._try(key, condition, write)
            except (TransactionConflictError, TransactionEndedError):
                # Nothing was applied, and nothing will be.
                if self._clock() >= deadline:
                    raise
            self._pause(attempt)

    def _try(
        self, key: Key, condition: Condition, write: Callable[[Transaction], None]
    ) -> TransactionCommit:
        transaction = self._begin(key)
        try:
            row = first_of(transaction.read([key]))
            condition.require(row, transaction.read_time)
            try:
                write(transaction)
            except TransactionConflictError as conflict:
                condition.require_unchanged(conflict, row, transaction.read_time)
                raise
        except BaseException:
            with contextlib.suppress(RezoneError):
                transaction.abort()
            raise
        return self._commit(transaction)

    def _commit(self, transaction: Transaction) -> TransactionCommit:
        """Commit, and find out whether that was done if no answer came."""
        try:
            committed = transaction.commit()
        except TransactionOutcomeUnknownError as unknown:
            result = self._outcome(transaction)
            if result is not None and result.outcome is TransactionOutcome.ABORTED:
                raise TransactionEndedError("aborted: its commit was not answered") from unknown
            if result is None or result.outcome is not TransactionOutcome.COMMITTED:
                raise
            return TransactionCommit(
                partition=transaction.partition,
                transaction=transaction.id,
                end_offset=result.end_offset,
                commit_time=result.commit_time,
                leader_epoch=result.leader_epoch,
            )
        assert committed is not None, "it has written"  # noqa: S101 - invariant
        return committed

    def _outcome(self, transaction: Transaction) -> TransactionResult | None:
        """Return how it has ended; None when nobody says it in time."""
        try:
            return self._end(transaction)
        except RezoneError:
            return None
