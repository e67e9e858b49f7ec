"""Batches on their way to a zone: a few at a time, acknowledged in their order."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from rezone.client import OutcomeUnknownError, PartitionWrite, TableClient
from rezone.client.operations.producer import is_behind

ROWS_PER_REQUEST = 16_384
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


def write_once(client: TableClient, batch: Any, *, delete: bool) -> None:
    """Write (or delete) a batch in requests that are the same each time, a few rows at a time."""
    for at in range(0, batch.num_rows, ROWS_PER_REQUEST):
        write_run_once(client, batch.slice(at, ROWS_PER_REQUEST), delete=delete)


def write_run_once(client: TableClient, batch: Any, *, delete: bool) -> None:
    """Write (or delete) a batch in requests that are the same each time, all partitions at once.

    Those that are there are repeats, by a client that numbers its batches (`producer_epoch`).
    """
    submit = client.submit_delete if delete else client.submit_write
    try:
        submit(batch).result()
    except OutcomeUnknownError as error:
        # A batch has rows of several partitions: each of those that failed must be there.
        if not all(map(_is_behind, (error, *error.others))):
            raise


def _is_behind(error: BaseException) -> bool:
    """Whether a later request of the same batch is there already, and so this one is."""
    return isinstance(error, OutcomeUnknownError) and is_behind(error.__cause__)
