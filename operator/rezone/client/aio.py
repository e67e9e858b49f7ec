"""The table client for `asyncio`: the threaded one, whose futures are awaited.

    async with AsyncTableClient(["orders.shop.svc:7400"]) as table:
        await table.put(id=7, owner="ann")
        row = await table.get(7)

Writes and reads by key hold no thread while they are under way: any number of coroutines may wait.
Those that are called in one turn of the loop are made together and share requests, so they cost
less than those of threads; they go out in the order in which they were called. All else that the
threaded client can do runs in a few threads (`run`).

Concurrency: for the coroutines of one event loop. A coroutine that is cancelled takes nothing back
that was submitted.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

from rezone.client.loop_calls import LoopCalls
from rezone.client.operations import single_rows
from rezone.client.operations.calls_together import Kind
from rezone.client.operations.conditional import VersionedRow
from rezone.client.operations.reads import rows_of
from rezone.client.operations.writes import PartitionWrite
from rezone.client.requests import batches
from rezone.client.requests.sharing import FoundRows
from rezone.client.settings import ClientSettings
from rezone.client.table import TableClient
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import LimitExceededError, ReshardedError
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
        self._loop_calls: LoopCalls | None = None
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="rezone-aio")

    async def run(self, call: Callable[[TableClient], T]) -> T:
        """Return what a call of the threaded client returns: `await table.run(lambda t: t.scan())`.

        It has a thread until then.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, call, self.table)

    async def write(self, data: batches.Rows) -> list[PartitionWrite]:
        """Upsert rows; returns when they are acknowledged."""
        return await self._calls().call(Kind.WRITE, data)

    async def delete(self, *keys: Any, if_version: int | None = None) -> list[PartitionWrite]:
        """Delete rows by primary key, given as `TableClient.delete` takes them."""
        if if_version is not None:
            return await self.run(lambda table: table.delete(*keys, if_version=if_version))
        if len(keys) == 1 and single_rows.is_rows(keys[0]):
            return await self._calls().call(Kind.DELETE, keys[0])
        key = single_rows.key_of(await self._codec(), keys)
        return await self._calls().call(Kind.DELETE, key)

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
        keys = single_rows.key_of(await self._codec(), key)
        try:
            found = await self._calls().call(Kind.READ, keys)
        except ReshardedError:
            return await self.run(lambda table: table.get(*key))
        rows: FoundRows = found[0]
        return rows.first()

    async def get_version(self, *key: Any) -> VersionedRow:
        """Return the newest state of one row with its version."""
        return await self.run(lambda table: table.get_version(*key))

    async def read(self, keys: batches.Rows, as_of: int | None = None) -> Any:
        """Return the rows of these primary keys as a table, absent ones left out, in no order."""
        if as_of is not None:
            return await self.run(lambda table: table.read(keys, as_of))
        codec = await self._codec()
        try:
            found = await self._calls().call(Kind.READ, keys)
        except (ReshardedError, LimitExceededError):
            # Its keys are cut again.
            return await self.run(lambda table: table.read(keys))
        return rows_of(codec, found)

    async def _codec(self) -> RowCodec:
        if self.table.together.knows_zone:
            return self.table.codec
        return await self.run(lambda table: table.codec)

    def _calls(self) -> LoopCalls:
        if self._loop_calls is None:
            self._loop_calls = LoopCalls(self.table.together)
        return self._loop_calls

    async def close(self) -> None:
        """Close all connections; what is under way ends with an error."""
        if self._loop_calls is not None:
            self._loop_calls.close()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        self.table.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
