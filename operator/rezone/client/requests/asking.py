"""Requests to leaders, one at a time: who asks waits for the answer.

Concurrency: any thread may ask.
"""

from collections.abc import Callable
from concurrent.futures import Future

from rezone.client.requests.calls import Budget
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.request import Outcome, Request
from rezone.client.settings import TransactionOutcomeUnknownError, closed_error
from rezone.wire.errors import ReshardedError, RezoneError
from rezone.wire.messages import (
    Message,
    PartitionId,
    TransactionEnd,
    TransactionOutcome,
    TransactionResult,
)


class Requests:
    """Asks leaders, one request after the other, and waits for the answers."""

    def __init__(self, dispatcher: Dispatcher, budget: Budget) -> None:
        self._dispatcher = dispatcher
        self._budget = budget

    def ask(
        self, partition: PartitionId, message: Callable[[int], Message], body: bytes = b""
    ) -> tuple[Outcome, int]:
        """Return the answer or the error that it has ended with, and how often it was sent."""
        answer: Future[Outcome] = Future()
        room = self._budget.take(len(body))
        request = Request(partition=partition, message=message, body=body, done=answer.set_result)
        try:
            if not self._dispatcher.submit(request):
                raise closed_error()
            return answer.result(), request.attempts
        finally:
            self._budget.give(room)

    def end(
        self,
        partition: PartitionId,
        transaction: str,
        *,
        commit_after: int | None = None,
        begun_in: PartitionId | None = None,
    ) -> TransactionResult:
        """Commit a transaction of so many writes, or abort it; return how it has ended.

        Where the partition was re-sharded it is over, and whoever has the start of its range knows
        how. TransactionOutcomeUnknownError when no answer came to a commit that was sent.
        """

        def message(opaque: int) -> Message:
            return TransactionEnd(
                opaque=opaque,
                partition=partition,
                transaction=transaction,
                sequence=(commit_after or 0) + 1,
                commit=commit_after is not None,
                begun_in=begun_in,
            )

        answer, attempts = self.ask(partition, message)
        committing = commit_after is not None and attempts > 0
        if isinstance(answer, ReshardedError):
            return self._end_of_sealed(partition, transaction, answer, committing=committing)
        if isinstance(answer, RezoneError):
            if not committing or (attempts == 1 and not answer.retryable):
                raise answer
            raise _unknown(partition, transaction) from answer
        result = answer[0]
        assert isinstance(result, TransactionResult)  # noqa: S101 - the node answers in kind
        if committing and attempts > 1 and result.outcome is TransactionOutcome.UNKNOWN:
            raise _unknown(partition, transaction)
        return result

    def _end_of_sealed(
        self,
        partition: PartitionId,
        transaction: str,
        refusal: ReshardedError,
        *,
        committing: bool,
    ) -> TransactionResult:
        """Ask a target how a transaction has ended; `committing`: a commit of it was sent."""
        target = self._dispatcher.target_of(partition)
        try:
            if target is None:
                raise refusal
            result = self.end(target, transaction, begun_in=partition)
        except RezoneError as error:
            if committing:
                raise _unknown(partition, transaction) from error
            raise
        if committing and result.outcome is TransactionOutcome.UNKNOWN:
            raise _unknown(partition, transaction)
        return result


def _unknown(partition: PartitionId, transaction: str) -> TransactionOutcomeUnknownError:
    return TransactionOutcomeUnknownError(
        f"whether transaction {transaction} on partition {partition} was committed is unknown; "
        "ask for its outcome",
        partition=partition,
        transaction=transaction,
    )
