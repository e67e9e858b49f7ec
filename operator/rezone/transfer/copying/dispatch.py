"""Which copies of a plan begin when: those that their receivers admit, while others wait (B-03).

The operator says to receivers what may begin, within the zone's limits and while nothing is paused;
the driver asks them. So a copy that has to wait takes no place from one that may begin, and neither
the driver nor the operator remembers anything that the other has to know after a crash.

Concurrency: `dispatch` runs in the caller's thread, each copy in one of a pool.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Self

import msgspec
import structlog

from rezone.wire.copying.copy import CopyReceipt
from rezone.wire.copying.plan import CopyTarget, PartitionCopy, target_name
from rezone.wire.errors import RezoneError
from rezone.wire.messages import WaitingCopies, WaitingCopiesRequest
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import tls_from_environment

POLL_SECONDS = 1.0
SILENT_SECONDS_MAX = 60.0
"""For how long a receiver that does not answer holds its copies; Spark's tries come after that."""

ASK_SECONDS_MAX = 5.0
ASKED_AT_ONCE = 16
JOBS_MAX = 256

log = structlog.get_logger(__name__)


class Receivers:
    """What the receivers of a plan say about the copies that have not begun."""

    def __init__(
        self,
        connect: Callable[[str], NodeClient] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect or functools.partial(NodeClient, tls=tls_from_environment())
        self._clock = clock
        self._clients: dict[str, NodeClient] = {}
        self._heard: dict[str, float] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="ask")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for client in self._clients.values():
            client.close()

    def ready(self, entries: Sequence[PartitionCopy]) -> list[PartitionCopy]:
        """Return the copies that may begin: admitted by all their receivers that need one.

        Those that no receiver needs are among them: their tasks end with that.
        """
        addresses = sorted({t.address for e in entries for t in e.targets})
        answers = dict(zip(addresses, self._pool.map(self._ask, addresses), strict=True))
        return [e for e in entries if all(self._may_begin(e, t, answers) for t in e.targets)]

    def _may_begin(
        self,
        entry: PartitionCopy,
        target: CopyTarget,
        answers: dict[str, WaitingCopies | None],
    ) -> bool:
        answer = answers[target.address]
        if answer is None:
            return self._clock() - self._heard[target.address] > SILENT_SECONDS_MAX
        return entry.partition in answer.admitted or entry.partition not in answer.partitions

    def _ask(self, address: str) -> WaitingCopies | None:
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = self._connect(address)
            self._heard.setdefault(address, self._clock())
        try:
            answer: WaitingCopies = client.call(
                WaitingCopiesRequest(), WaitingCopies, timeout_seconds=ASK_SECONDS_MAX
            )
        except RezoneError as error:
            log.info("a receiver does not say what may begin", node=address, error=str(error))
            return None
        self._heard[address] = self._clock()
        return answer


def dispatch(
    plan: Sequence[PartitionCopy],
    ready: Callable[[Sequence[PartitionCopy]], Iterable[PartitionCopy]],
    copy: Callable[[PartitionCopy], Sequence[CopyReceipt]],
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> list[CopyReceipt]:
    """Run `copy` for each entry once `ready` lets it begin; return all receipts at the end.

    What a copy could not begin with, because it was held after all, waits again.
    """
    receipts: list[CopyReceipt] = []
    left = {entry.partition: entry for entry in plan}
    running: dict[Future[Sequence[CopyReceipt]], PartitionCopy] = {}
    with ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="copy") as pool:
        while left or running:
            for entry in ready(tuple(left.values())) if left else ():
                running[pool.submit(copy, left.pop(entry.partition))] = entry
            if not running:
                sleep(POLL_SECONDS)
                continue
            pause = POLL_SECONDS if left else None
            for ended in wait(running, pause, FIRST_COMPLETED).done:
                entry = running.pop(ended)
                came = _receipts_of(ended, entry)
                receipts += [receipt for receipt in came if not receipt.held]
                held = {receipt.target for receipt in came if receipt.held}
                if targets := tuple(t for t in entry.targets if target_name(t) in held):
                    left[entry.partition] = msgspec.structs.replace(entry, targets=targets)
    return receipts


def _receipts_of(
    ended: Future[Sequence[CopyReceipt]], entry: PartitionCopy
) -> Sequence[CopyReceipt]:
    """Return what came of a copy; a job that Spark has ended has failed for all receivers."""
    if (error := ended.exception()) is None:
        return ended.result()
    text = f"{type(error).__name__}: {error}"[:1000]
    return [
        CopyReceipt(partition=entry.partition, target=target_name(t), error=text)
        for t in entry.targets
    ]
