"""What becomes of a change of rows: a producer's batch, a transaction's write or end, an opening.

Concurrency: under the replica's lock.
"""

from rezone.datanode.commit.insync import Outcome, Reply
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.datanode.writing.producing import Producing
from rezone.datanode.writing.transacting import Transacting
from rezone.datanode.writing.write import Planned
from rezone.wire.messages import (
    ProducerOpen,
    ProducerOpened,
    TransactionEnd,
    TransactionOutcome,
    TransactionResult,
    WriteResult,
)


class Planning:
    """Asks who knows: of producers, or of transactions."""

    def __init__(self, transacting: Transacting, producing: Producing) -> None:
        self._transacting = transacting
        self._producing = producing

    def plan(self, request: Change, prepared: PreparedRows, reply: Reply) -> Planned | None:
        """Return what becomes of a write and how that is told; None when it is told otherwise."""
        transacting, producing = self._transacting, self._producing
        if isinstance(request, TransactionEnd):
            planned = transacting.plan_end(request, prepared)
            if planned is None:
                transacting.answer_unknown(request, prepared, reply)
                return None
            plan, outcome = planned
            return plan, _saying(reply, outcome)
        if isinstance(request, ProducerOpen):
            plan, epoch = producing.plan_open(request, prepared)
            return plan, _saying_epoch(reply, epoch)
        if request.transaction is not None:
            return transacting.plan_write(request, prepared), reply
        return producing.plan_write(request, prepared), reply


def _saying(reply: Reply, outcome: TransactionOutcome) -> Reply:
    """Return a reply that says of a committed entry how it has ended its transaction."""

    def answer(result: Outcome) -> None:
        if isinstance(result, WriteResult):
            result = TransactionResult(
                opaque=result.opaque,
                outcome=outcome,
                end_offset=result.end_offset,
                commit_time=result.commit_time,
                leader_epoch=result.leader_epoch,
            )
        reply(result)

    return answer


def _saying_epoch(reply: Reply, epoch: int) -> Reply:
    """Return a reply that says of a committed opening which epoch it has given."""

    def answer(result: Outcome) -> None:
        if isinstance(result, WriteResult):
            result = ProducerOpened(opaque=result.opaque, producer_epoch=epoch)
        reply(result)

    return answer
