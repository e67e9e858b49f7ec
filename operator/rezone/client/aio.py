"""The table client for `asyncio`: the threaded one, whose futures are awaited.

    async with AsyncTableClient(["orders.shop.svc:7400"]) as table:
        await table.put(id=7, owner="ann")
        row = await table.get(7)

Writes and reads by key hold no thread while they are under way: any number of coroutines may wait,
and their calls share requests as those of threads do. One thread submits them, so they go out in
the order in which they were called. All else that the threaded client can do runs in a few threads
(`run`).

Concurrency: for the coroutines of one event loop. A coroutine that is cancelled takes nothing back
that was submitted.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from rezone.client.operations import single_rows
from rezone.client.operations.conditional import VersionedRow
from rezone.client.operations.writes import PartitionWrite
from rezone.client.requests import batches
from rezone.client.settings import ClientSettings
from rezone.client.table import TableClient
from rezone.wire.errors import ReshardedError
from rezone.wire.transport.tls import TlsSource

T = TypeVar("T")

THREADS_MAX = 16
"""So many calls of `run` are under way at a time; conditional writes are such calls, too."""


class AsyncTableClient:
    """Reads and writes the rows of one zone; see `TableClient` for arguments, results and errors.

    `threads_max`: how many calls that need a thread are under way at a time; others wait for one.
    Use it as a context manager, or `close` it.
    """

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        producer: str | None = None,
        settings: ClientSettings | None = None,
        tls: TlsSource | None = None,
        threads_max: int = THREADS_MAX,
    ) -> None:
        self.table = TableClient(bootstrap, producer=producer, settings=settings, tls=tls)
        self._submitter = ThreadPoolExecutor(1, thread_name_prefix="rezone-submit")
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="rezone-aio")

    async def run(self, call: Callable[[TableClient], T]) -> T:
        """Return what a call of the threaded client returns: `await table.run(lambda t: t.scan())`.

        It has a thread until then.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, call, self.table)

    async def _submitted(self, submit: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._submitter, submit)

    async def write(self, data: batches.Rows) -> list[PartitionWrite]:
        """Upsert rows; returns when they are acknowledged."""
        future = await self._submitted(lambda: self.table.submit_write(data))
        return await asyncio.wrap_future(future)

    async def delete(self, *keys: Any, if_version: int | None = None) -> list[PartitionWrite]:
        """Delete rows by primary key, given as `TableClient.delete` takes them."""
        if if_version is not None:
            return await self.run(lambda table: table.delete(*keys, if_version=if_version))
        if len(keys) == 1 and single_rows.is_rows(keys[0]):
            future = await self._submitted(lambda: self.table.submit_delete(keys[0]))
        else:
            future = await self._submitted(
                lambda: self.table.submit_delete(single_rows.key_of(self.table.codec, keys))
            )
        return await asyncio.wrap_future(future)

    async def put(
        self, *, if_version: int | None = None, if_absent: bool = False, **columns: Any
    ) -> PartitionWrite:
        """Upsert one row by its columns, on condition as `TableClient.put`."""
        if if_version is not None or if_absent:
            return await self.run(
                lambda table: table.put(if_version=if_version, if_absent=if_absent, **columns)
            )
        return (await self.write([columns]))[0]

    async def get(self, *key: Any) -> dict[str, Any] | None:
        """Return the newest state of one row by its primary key; None when it is not there."""
        found = await self._read(lambda: single_rows.key_of(self.table.codec, key))
        return single_rows.first_of(found)

    async def get_version(self, *key: Any) -> VersionedRow:
        """Return the newest state of one row with its version."""
        return await self.run(lambda table: table.get_version(*key))

    async def read(self, keys: batches.Rows, as_of: int | None = None) -> Any:
        """Return the rows of these primary keys as a table, absent ones left out, in no order."""
        return await self._read(lambda: keys, as_of)

    async def _read(self, keys: Callable[[], batches.Rows], as_of: int | None = None) -> Any:
        submitted = await self._submitted(lambda: self.table.submit_read(keys(), as_of))
        try:
            found = await asyncio.wrap_future(submitted.future)
        except ReshardedError:
            # Its keys are cut again.
            return await self.run(lambda table: table.read(keys(), as_of))
        return submitted.rows(found)

    async def close(self) -> None:
        """Close all connections; what is under way ends with an error."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        self.table.close()
        for pool in (self._submitter, self._threads):
            pool.shutdown(wait=True, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
