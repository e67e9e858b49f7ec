"""What the node has done for clients so far: the page /load, from which rates are made."""

from collections.abc import Iterable
from typing import Final

from rezone.datanode.node.node import DataNode
from rezone.datanode.scheduling.requests import BOUNDS_SECONDS, Counts, Operation, Result
from rezone.wire.messages.loads import ClientLoad, RequestLoad

_READS: Final = (Operation.READ, Operation.SNAPSHOT_READ, Operation.SCAN, Operation.LOOKUP)
_WRITES: Final = (Operation.WRITE, Operation.TRANSACTION_WRITE)
_FAILED: Final = (Result.REFUSED, Result.OVERLOADED, Result.UNAVAILABLE, Result.FAILED)


def client_load(node: DataNode) -> ClientLoad:
    """Return the counts of this moment."""
    counts, partitions = node.foreground.requests, node.partitions()
    copies = [p.copy_progress for p in partitions]
    return ClientLoad(
        process_id=node.process_id,
        seconds=node.clock.monotonic(),
        bounds_micros=tuple(round(bound * 1e6) for bound in BOUNDS_SECONDS),
        reads=_added(counts[each] for each in _READS),
        writes=_added(counts[each] for each in _WRITES),
        copied_bytes=sum(max(0, copy.bytes) for copy in copies if copy is not None),
        write_throttled_seconds=sum(p.pacer.waited_seconds for p in partitions),
    )


def _added(counts: Iterable[Counts]) -> RequestLoad:
    each = list(counts)
    return RequestLoad(
        ok=tuple(map(sum, zip(*(count.buckets for count in each), strict=True))),
        failed=sum(count.results[result] for count in each for result in _FAILED),
    )
