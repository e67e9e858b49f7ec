"""Loads whose tasks run twice at a time, over re-shardings, at real data nodes, without Spark."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bulk_kit import DiedError, load_arguments
from feed_kit import following
from replica_cluster import FAST, Coordinator, cluster
from resharding_kit import create_old, cut_over, overlaps_of, progress, reshard, seal

from rezone.client import TableClient
from rezone.transfer import load_job
from rezone.transfer.bulk import parquet, sorting
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.schema import Column, ColumnType, RowLimits, TableSchema
from rezone.wire.layouts import layout_of
from rezone.wire.messages import ZoneConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(
    zone="z", zone_uid="u", partitions=3, table=TABLE, limits=RowLimits(batch_rows_max=120)
)
CALM = msgspec.structs.replace(FAST, replica_lag_ms_max=20_000, reshard_poll_ms=100)
ROWS, RUNS = 960, 8


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """Yield two nodes with three partitions, for loads of which each unit is eight runs."""
    monkeypatch.setattr(parquet, "ROWS_PER_BATCH", ROWS // RUNS)
    monkeypatch.setattr(sorting, "RUN_BYTES", 1)
    with cluster(tmp_path / "nodes", 2, config=CONFIG, settings=CALM) as c:
        create_old(c)
        yield c


class Attempts:
    """Attempts of a load's only unit, each in a thread, of which one at a time writes a run."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, nodes: Coordinator, directory: Path, name: str
    ) -> None:
        self.going: dict[str, Attempt] = {}
        found = [{"id": n, "value": name} for n in range(ROWS)]
        (directory / "in").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(found), directory / "in" / "a.parquet")
        self._given = load_arguments(
            nodes,
            directory,
            name=name,
            bootstrap=",".join(nodes.peers.values()),
            parquet=str(directory / "in"),
            refused_max=10,
        )
        runs = sorting.runs

        def stepping(codec: Any, batches: Any) -> Iterator[Any]:
            for run in runs(codec, batches):
                self.going[threading.current_thread().name].wait()
                yield run

        clients: dict[str, TableClient] = {}
        connect = SourceOptions.client

        def client(*options: Any) -> TableClient:
            name = threading.current_thread().name
            clients[name] = connect(*options)
            return clients[name]

        monkeypatch.setattr(load_job, "runs", stepping)
        monkeypatch.setattr(SourceOptions, "client", client)
        self._clients = clients

    def learn(self, name: str) -> None:
        """Have an attempt's client fetch routes, as one does whose request has met a new leader."""
        self._clients[name].segments()

    def write(self, name: str) -> None:
        """Have an attempt write its next run, and note that it is done behind its last one."""
        if name not in self.going:
            self.going[name] = Attempt(name, functools.partial(self._load, name))
            self.going[name].begin()
        self.going[name].step()

    def end(self, name: str) -> None:
        """End an attempt where it stands, as Spark ends the slower one."""
        self.going.pop(name).die()

    def finish(self, name: str) -> None:
        """Have an attempt write all that is left."""
        while name not in self.going or self.going[name].is_alive:
            self.write(name)
        attempt = self.going.pop(name)
        assert attempt.error is None, attempt.error

    def _load(self, name: str) -> None:
        def run(phase: Any, units: Any, task: Callable[[Any], Any]) -> list[Any]:
            del phase
            assert name == threading.current_thread().name
            return [task(each)[0] for each in units]

        code, said = load_job.load(self._given, run)
        assert (code, said["rows"]) == (0, ROWS)


class Attempt:
    """One attempt: it goes on when it is told, up to its next run."""

    def __init__(self, name: str, load: Callable[[], None]) -> None:
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        self._dies = False
        self.error: BaseException | None = None

        def run() -> None:
            try:
                load()
            except BaseException as error:  # noqa: BLE001 - told to the test
                self.error = error
            finally:
                self._came.release()

        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def begin(self) -> None:
        """Go up to the first run."""
        self._thread.start()
        self._arrived()

    @property
    def is_alive(self) -> bool:
        """Whether it waits for its next run."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait before a run until it is told to go on, in its own thread."""
        self._came.release()
        self._go.acquire()
        if self._dies:
            raise DiedError

    def step(self) -> None:
        """Have it write a run."""
        assert self.is_alive, self.error
        self._go.release()
        self._arrived()

    def die(self) -> None:
        """End it before its next run."""
        self._dies = True
        self.step()
        self._thread.join(20)
        assert isinstance(self.error, DiedError)

    def _arrived(self) -> None:
        assert self._came.acquire(timeout=60), "the attempt hangs"
        if self.error is not None or not self._thread.is_alive():
            self._thread.join(20)


def backfilled(nodes: Coordinator, partitions: int) -> None:
    """Begin a re-sharding, up to where it may cut over."""
    reshard(nodes, partitions)
    nodes.until_each("backfilled", overlaps_of(nodes), lambda p: progress(nodes, p).backfilled)


def steps(text: str, attempts: Attempts, nodes: Coordinator) -> None:
    """Play a script: a letter writes a run of that attempt.

    Behind "-" it is ended, behind "?" its client fetches routes. A digit seals that partition of
    the old layout, "!" ends the re-sharding.
    """
    acts = iter(text.replace(" ", ""))
    for act in acts:
        if act == "-":
            attempts.end(next(acts))
        elif act == "?":
            attempts.learn(next(acts))
        elif act == "!":
            cut_over(nodes)
        elif act.isdigit():
            seal(nodes, layout_of(nodes.config).ids[int(act)])
        else:
            attempts.write(act)


@pytest.mark.proves("SP-06")
@pytest.mark.parametrize(
    ("partitions", "script"),
    [
        pytest.param(2, "aaa bbbbbb -b", id="at once"),
        pytest.param(6, "aaaa b 012 ?b bbbbbb -b", id="overtaken behind a cut-over"),
        pytest.param(2, "aaaa b 012! ?b bbbbbb -b", id="merged"),
        pytest.param(2, "aaaa 012! aa -a", id="repeated behind a cut-over"),
        pytest.param(2, "aa 0 aa bbb 2 b a 1! bbb -b", id="one by one"),
        pytest.param(5, "aaaaaa 1 b 02 bbb -a bb -b", id="the faster one ends"),
    ],
)
def test_a_unit_that_runs_twice_over_a_cut_over_is_written_once(
    nodes: Coordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    script: str,
) -> None:
    """Each row of a load is one change, though two attempts of its unit meet a re-sharding.

    Numbered by arrival in the new partitions, one attempt takes the rows of the other for its own:
    they are lost when the other one is ended. Without what runs were sent as before they are
    written twice, over what others have written since.
    """
    attempts = Attempts(monkeypatch, nodes, tmp_path, "load")
    with TableClient(list(nodes.peers.values())) as client, following(client) as found:
        backfilled(nodes, partitions)
        steps(script, attempts, nodes)
        attempts.finish(next(iter(attempts.going), "c"))
        expected = {(n, "load"): 1 for n in range(ROWS)}
        assert client.scan().num_rows == ROWS, "rows are lost"
        nodes.until("all changes are told", lambda: expected.keys() <= found.keys())
        client.write([{"id": -1, "value": "end"}])
        nodes.until("the end is told", lambda: found[-1, "end"] == 1)
        told = {key: found[key] for key in expected}
    assert told == expected, "rows are written twice"
