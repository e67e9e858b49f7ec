"""A zone is overwritten under readers, with a real API server, operator and data nodes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest
from operated_cluster import (
    SCHEMA,
    TestCluster,
    addresses_of,
    check_settled,
    path_of,
    state_of,
    until,
    until_records,
    until_zone,
)
from operator_process import OperatorProcess
from resharding_case import GRACE, task_of, zone_with_rows

from rezone.client import TableClient
from rezone.local.api import Json, KubeApi
from rezone.transfer.copying.new_rows import NewRows
from rezone.transfer.copying.overwriting import Overwriting
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import RezoneError, VersionsExpiredError
from rezone.wire.layouts import Layout

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(300)]

NAMESPACE = "overwritten"
NODES = ("worker-1", "worker-2", "worker-3")
ZONE = "over"
TASKS = path_of(NAMESPACE, "rebalancetasks")
OPERATOR = GRACE
NEW = [b"new-%05d" % number for number in range(3_000)]


@pytest.fixture
async def zone(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> AsyncIterator[Json]:
    """Give a zone of three partitions with rows."""
    del operator
    async with zone_with_rows(cluster, api, NAMESPACE, ZONE, NODES) as made:
        yield made


class Readers:
    """Reads all rows as of one time, again and again: the old ones or the new ones."""

    def __init__(self, zone: Json) -> None:
        self._addresses = sorted(addresses_of(zone).values())
        self._stop = threading.Event()
        self.counts = {"old": 0, "new": 0}
        self.mixed: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with TableClient(self._addresses) as client:
            while not self._stop.wait(0.05):
                try:
                    time = client.read_time(max_staleness_seconds=0).as_of
                    found = client.scan(as_of=time)["key"].to_pylist()
                except RezoneError:
                    continue  # nobody answers between the seals and the switch
                new = sum(key.startswith(b"new-") for key in found)
                if new not in {0, len(found)}:
                    self.mixed.append((new, len(found)))
                self.counts["new" if new else "old"] += 1

    def end(self) -> None:
        """Stop, and see that nobody has seen both."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.mixed == []
        assert min(self.counts.values()) > 0, self.counts


def new_rows(zone: Json) -> tuple[NewRows, int]:
    """Return the rows of the job, and the time that it has read."""
    with TableClient(sorted(addresses_of(zone).values())) as client:
        time = client.read_time(max_staleness_seconds=0).as_of
    batch = pa.record_batch(
        [pa.array(NEW, pa.binary()), pa.array([b"v"] * len(NEW), pa.binary())], schema=SCHEMA
    )
    encoded = encoded_rows(RowCodec(TableSchema()), batch)
    return NewRows(encoded.row_ids(), encoded.values(), time), time


def overwriting(zone: Json, name: str) -> Overwriting:
    """Return a driver."""
    return Overwriting(name, addresses_of(zone), every_seconds=0.5, patience_seconds=120.0)


@pytest.mark.proves("SP-05")
async def test_readers_have_the_old_rows_or_the_new_ones(
    api: KubeApi, operator: OperatorProcess, zone: Json
) -> None:
    """A reader would see some of both, also when the operator is killed in the middle."""
    rows, time = await asyncio.to_thread(new_rows, zone)
    readers = Readers(zone)
    driver = asyncio.create_task(asyncio.to_thread(overwriting(zone, "first").run, rows))
    name = await task_of(api, NAMESPACE, ZONE, 3)
    await until(api, TASKS, name, lambda t: state_of(t) in {"Transferring", "Switching"})
    operator.restart()
    receipt = await asyncio.wait_for(driver, 200)
    assert receipt.rows <= len(NEW)
    await until_zone(api, NAMESPACE, ZONE, lambda z: not z["status"]["assignments"].get("pending"))
    after = await check_settled(api, NAMESPACE, ZONE)
    await asyncio.to_thread(readers.end)
    await asyncio.to_thread(check, after, time)
    await until_records(api, NAMESPACE, ZONE, lambda found: list(found) == list(Layout(1, 3).ids))
    # One that comes again knows that all is done, and brings nothing.
    assert overwriting(after, "first").is_done()
    again = await asyncio.to_thread(overwriting(after, "first").run, rows)
    assert again.rows == 0


def check(zone: Json, time: int) -> None:
    """See the new rows alone, and none as of a time before."""
    with TableClient(sorted(addresses_of(zone).values())) as client:
        assert sorted(client.scan()["key"].to_pylist()) == NEW
        with pytest.raises(VersionsExpiredError):
            client.scan(as_of=time)
