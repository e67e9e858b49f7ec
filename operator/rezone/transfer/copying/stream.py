"""A copy without Spark: from the source to each target by address, in the caller's process.

A small partition is copied this way (`sparkThresholdBytes`), and a data node pulls for itself by
`wire.copying.copy_partition` with a sink of its own. The Spark task (`copy_job`) calls
`copy_entry` too: there is one copy loop.
"""

import contextlib
import functools
import time
from collections.abc import Callable

from rezone.wire.copying.copy import CopyOptions, CopyReceipt, Relay, copy_partition
from rezone.wire.copying.plan import PartitionCopy, target_name
from rezone.wire.copying.sink import FlightSink
from rezone.wire.messages import BulkInsert
from rezone.wire.transport.fetch import WatchedSource
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.ratelimit import RateLimit
from rezone.wire.transport.tls import tls_from_environment


def copy_entry(
    entry: PartitionCopy,
    *,
    attempt: str,
    options: CopyOptions | None = None,
    rate: RateLimit | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    connect: Callable[[str], NodeClient] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[CopyReceipt]:
    """Copy one partition of a plan to all its targets; one receipt per target, in their order.

    `attempt` names this try to the receivers: a receiver takes a newer one in place of an older
    one that hangs. Receipts name a target by "id@host:port". `connect` shows, by default, the
    certificate of REZONE_TLS_DIRECTORY.
    """
    open_node = connect or functools.partial(NodeClient, tls=tls_from_environment())
    with contextlib.ExitStack() as stack:

        def node(address: str) -> NodeClient:
            client = open_node(address)
            stack.callback(client.close)
            return client

        descriptor = BulkInsert(
            partition=entry.partition,
            snapshot_source=entry.source_id,
            attempt=attempt,
            revision=entry.revision,
        )
        sinks = [
            FlightSink(target_name(target), node(target.address), descriptor)
            for target in entry.targets
        ]
        return copy_partition(
            Relay(
                entry.partition,
                WatchedSource(node(entry.source)),
                sinks,
                reader=attempt,
                options=options,
                rate=rate,
                cancelled=cancelled,
                clock=clock,
            )
        )
