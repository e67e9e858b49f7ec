"""The operator's part of an overwrite, for tests with data nodes alone (decision 0500)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Self

import msgspec
from replica_cluster import Coordinator
from resharding_kit import begin_to_seal, overlaps_of, placed, progress, resharded

from rezone.wire.errors import RezoneError
from rezone.wire.layouts import Layout, Overlap, layout_of, next_layout_of
from rezone.wire.messages import NodeReport, ReportRequest, SealState, StopReplica


def seal_all(c: Coordinator) -> int:
    """Seal all old partitions; return the time from which on the new ones may be read."""
    for partition in layout_of(c.config).ids:
        begin_to_seal(c, partition)

    def sealed(partition: int) -> bool:
        return c.report(c.records[partition].leader, partition).seal is SealState.SEALED

    c.until_each("it is sealed", layout_of(c.config).ids, sealed)
    ranges = overlaps_of(c)
    c.until_each("all is taken over", ranges, lambda each: progress(c, each).sealed)
    return max(progress(c, each).sealed_time for each in ranges) + 1


def switch(c: Coordinator, readable_from: int, name: str = "job") -> None:
    """Have the next layout serve, as the operator does, and then be the only one."""
    new = next_layout_of(c.config)
    assert new is not None
    c.config = msgspec.structs.replace(
        c.config,
        next_filled_by="",
        filled_by=name,
        readable_from=readable_from,
        readable_generation=new.generation,
    )
    c.configure()


def drop_old(c: Coordinator) -> None:
    """Have the new layout be the only one, as when the old partitions are gone."""
    new = next_layout_of(c.config)
    assert new is not None
    c.config = msgspec.structs.replace(
        c.config, generation=new.generation, partitions=new.partitions, next_partitions=0
    )
    c.configure()


class OverwritingOperator:
    """Does what drivers ask all data nodes for: a context; `go_on` lets it seal and switch.

    `begun` is set when all reshard streams of an overwrite have begun: what is written from then on
    stays. `asked` has all names. `cancel` ends the overwrite that runs; its name is refused then.
    """

    def __init__(self, c: Coordinator) -> None:
        self._c = c
        self._over = threading.Event()
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.cancel = threading.Event()
        self.asked: list[str] = []
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.failed:
            raise self.failed[0]

    def _run(self) -> None:
        try:
            while not self._over.wait(0.05):
                if name := self._name():
                    self._overwrite(name)
        except BaseException as error:
            self.failed.append(error)
            raise

    def _name(self) -> str:
        names = set()
        for node in self._c.peers:
            with contextlib.suppress(RezoneError):
                report = self._c.call(node, ReportRequest(seen=-1), NodeReport)
                names.add(report.overwrite)
        name = names.pop() if len(names) == 1 else ""
        known = {self._c.config.filled_by, self._c.config.cancelled_overwrite}
        return "" if name in known else name

    def _overwrite(self, name: str) -> None:
        c = self._c
        self.asked.append(name)
        c.config = msgspec.structs.replace(
            c.config, next_partitions=c.config.partitions, next_filled_by=name
        )
        c.configure()
        new = next_layout_of(c.config)
        assert new is not None
        for index, partition in enumerate(new.ids):
            c.create(partition, placed(c, index))
        if self._comes(lambda each: progress(c, each).begun):
            self.begun.set()
            if self._comes(lambda each: self.go_on.is_set() and bool(resharded(c, each))):
                switch(c, seal_all(c), name)
                drop_old(c)
        if self.cancel.is_set():
            self._leave(name, new)
            self.cancel.clear()
        self.begun.clear()

    def _comes(self, fits: Callable[[Overlap], bool]) -> bool:
        """Wait until it fits all ranges; return False when the overwrite is cancelled, or over."""
        while not self._all(fits):
            if self.cancel.is_set() or self._over.wait(0.05):
                return False
        return True

    def _leave(self, name: str, new: Layout) -> None:
        """Remove the new partitions. Their ids are never used again."""
        c = self._c
        c.config = msgspec.structs.replace(
            c.config,
            next_partitions=0,
            next_generation=new.generation + 1,
            next_filled_by="",
            cancelled_overwrite=name,
        )
        c.configure()
        for partition in new.ids:
            record = c.records[partition]
            stop = StopReplica(
                fence=c.fence(),
                partition=partition,
                leader_epoch=record.leader_epoch + 1,
                partition_epoch=record.partition_epoch + 1,
            )
            for node in record.replicas:
                c.call(node, stop)

    def _all(self, fits: Callable[[Overlap], bool]) -> bool:
        try:
            return all(map(fits, overlaps_of(self._c)))
        except RezoneError:
            return False
