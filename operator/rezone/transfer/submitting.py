"""Batches on their way to a zone: a few at a time, acknowledged in their order."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from rezone.client import PartitionWrite, TableClient

BATCHES_MAX = 8
"""So many are under way behind the one that is waited for."""


def acknowledged(
    client: TableClient, batches: Iterable[Any], *, delete: bool
) -> Iterator[list[PartitionWrite]]:
    """Write (or delete) the rows of batches; yield what each has become, as it is acknowledged."""
    submit = client.submit_delete if delete else client.submit_write
    waiting: deque[Future[list[PartitionWrite]]] = deque()
    for batch in batches:
        waiting.append(submit(batch))
        if len(waiting) > BATCHES_MAX:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
