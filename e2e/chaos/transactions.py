"""Transactions of a client under faults, recorded as `snapshots` reads them.

Each reads some keys of one partition and writes one or two of them. The keys of a group are those
with the lowest hashes of their partition, so that they stay together when the zone is re-sharded.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Sequence

from e2e.chaos.history import Outcome
from e2e.chaos.recording import ClosedLoop, Lines
from e2e.chaos.snapshots import ABSENT
from rezone.client import TableClient, Transaction
from rezone.wire.errors import RezoneError, TransactionEndedError
from rezone.wire.messages import TransactionOutcome

GROUP = 4
_READS = 3


class TransactionWorker(ClosedLoop):
    """One closed loop of transactions over all groups of keys, one after the other at random."""

    def __init__(
        self,
        table: TableClient,
        lines: Lines,
        *,
        client: int,
        groups: Sequence[Sequence[int]],
        values: itertools.count[int],
        rng: random.Random,
        pause_seconds: float,
        stop: threading.Event,
    ) -> None:
        super().__init__("transactions", rng, pause_seconds, stop)
        self._table = table
        self._lines = lines
        self._client = client
        self._groups = groups
        self._values = values

    def run(self) -> None:
        """Run transactions until told to stop."""
        for _ in self.turns():
            begin_ns = time.monotonic_ns()
            keys = self.rng.sample(self.rng.choice(self._groups), _READS)
            try:
                with self._table.transaction({"id": keys[0]}) as transaction:
                    self._run_one(transaction, keys, begin_ns)
            except (RezoneError, TimeoutError):
                # Refused before its commit: nobody may ever see its values, which is checked.
                continue

    def _run_one(self, transaction: Transaction, keys: list[int], begin_ns: int) -> None:
        rows = transaction.read([{"id": key} for key in keys]).to_pylist()
        reads = dict.fromkeys(keys, ABSENT) | {row["id"]: row["value"] for row in rows}
        writes = {key: next(self._values) for key in self.rng.sample(keys, self.rng.randrange(3))}
        if writes:
            transaction.write([{"id": key, "value": value} for key, value in writes.items()])
        number = self._lines.number()
        self._lines.put(
            op=number,
            client=self._client,
            read_time=transaction.read_time,
            begin_ns=begin_ns,
            reads=reads,
            writes=writes,
        )
        outcome, commit_time = _commit(transaction)
        self._lines.put(
            op=number, end_ns=time.monotonic_ns(), outcome=outcome, commit_time=commit_time
        )


def _commit(transaction: Transaction) -> tuple[Outcome, int | None]:
    try:
        committed = transaction.commit()
    except TransactionEndedError as error:
        aborted = error.details.get("outcome") == TransactionOutcome.ABORTED.value
        return (Outcome.FAILED if aborted else Outcome.UNKNOWN), None
    except (RezoneError, TimeoutError):
        return Outcome.UNKNOWN, None
    return Outcome.OK, transaction.read_time if committed is None else committed.commit_time
