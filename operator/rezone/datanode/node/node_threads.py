"""A data node's own threads.

One ticks, one watches the disk, one keeps house, one collects old versions and scrubs, one looks
who does not read.
"""

import threading
from collections.abc import Callable

import structlog

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.node.hearing import Hearing
from rezone.datanode.node.links import Links
from rezone.datanode.node.reopening import Reopening
from rezone.datanode.node.report import ReportBoard
from rezone.datanode.reading.closed_timestamp import ClosedAlone
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.overwrites import Overwrites
from rezone.datanode.scheduling import inline_sends
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.lag import Lag
from rezone.datanode.scheduling.workers import Job
from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import RezoneError

_log = structlog.get_logger(__name__)
_ALIVE_SECONDS = 10.0
_DISK_SECONDS = 0.1

JOB_SECONDS_MAX = 60.0
"""A job does what is due and ends. One that has run for so long hangs, unless the disk does."""


class NodeThreads:
    """Runs what is due at the node's partitions and channels until `stopping` is set."""

    def __init__(
        self,
        settings: NodeSettings,
        clock: CheckedClock,
        stopping: threading.Event,
        *,
        partitions: Callable[[], list[Replica]],
        links: Links,
        board: ReportBoard,
        clock_bound: ClockBound,
        keep_bound: Callable[[], None],
        reopening: Reopening,
        hearing: Hearing,
        look_at_disk: Callable[[float], None],
        wake: Callable[[Job], None],
        watch_senders: Callable[[], None],
        longest_job: Callable[[], float],
        disk_stalls: Callable[[], bool],
        overwrites: Overwrites,
    ) -> None:
        self.lag = Lag()
        self._settings = settings
        self._clock = clock
        self._stopping = stopping
        self._partitions = partitions
        self._links = links
        self._clock_bound = clock_bound
        self._longest_job = longest_job
        self._disk_stalls = disk_stalls
        self._overwrites = overwrites
        self._look_at_disk = look_at_disk
        self._clock_bound_job = Job("clock bound", keep_bound)
        closed = ClosedAlone(partitions, settings.lease_ms)
        self._ticking = (hearing, closed, board, reopening)
        self._wake = wake
        self._ticked_at = clock.monotonic()
        self._threads = [
            threading.Thread(target=self._tick_all, name="tick", daemon=True),
            threading.Thread(target=self._watch_disk, name="watch disk", daemon=True),
            threading.Thread(target=self._keep_house, name="house", daemon=True),
            threading.Thread(target=self._collect, name="collect", daemon=True),
            threading.Thread(target=watch_senders, name="unread", daemon=True),
        ]

    def start(self) -> None:
        """Start them."""
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> None:
        """Wait for each to end, once `stopping` is set; so long at most."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join(seconds)

    @property
    def alive(self) -> bool:
        """Whether the ticking one has run lately, and no job hangs.

        Of a job that waits for a stalled disk others know, and take its leaders: a restart would
        find the same disk.
        """
        if self._longest_job() > JOB_SECONDS_MAX and not self._disk_stalls():
            return False
        return self._clock.monotonic() - self._ticked_at < _ALIVE_SECONDS

    def _tick_all(self) -> None:
        interval = self._settings.tick_interval_ms / 1000
        wanted = self._clock.monotonic() + interval
        while not self._stopping.wait(interval):
            now = self._ticked_at = self._clock.monotonic()
            self.lag.note(now - wanted)
            self._tick_each(now)
            for duty in (*(each.tick for each in self._ticking), self._look):
                with UNEXPECTED.surviving("tick of the node"):
                    duty(now)
            wanted = self._clock.monotonic() + interval

    def _tick_each(self, now: float) -> None:
        """Tick partitions and channels; one that cannot does not keep the others from it."""
        ticks: list[Callable[[float], None]] = [
            *(each.tick for each in self._partitions() if each.due <= now),
            *(each.tick for each in self._links.consumers()),
            *(each.tick for each in self._links.producers()),
        ]
        # By this thread, and all that goes to one node in one frame.
        with UNEXPECTED.surviving("send after ticks"), inline_sends.scope():
            for tick in ticks:
                with UNEXPECTED.surviving("tick"):
                    tick(now)

    def _look(self, now: float) -> None:
        self._overwrites.tick()
        self._clock.look(now)
        if self._clock.knows and self._clock_bound.is_due:
            self._wake(self._clock_bound_job)

    def _watch_disk(self) -> None:
        while not self._stopping.wait(_DISK_SECONDS):
            with UNEXPECTED.surviving("look at the disk"):
                self._look_at_disk(self._clock.monotonic())

    def _keep_house(self) -> None:
        while not self._stopping.wait(self._settings.trim_interval_ms / 1000):
            for partition in self._partitions():
                try:
                    partition.upkeep.keep_house()
                except (RezoneError, OSError) as error:
                    _log.warning(
                        "cannot tidy up", partition=partition.partition_id, error=str(error)
                    )
                except Exception:  # noqa: BLE001 - told with its trace
                    UNEXPECTED.failed("upkeep")

    def _collect(self) -> None:
        while not self._stopping.wait(self._settings.trim_interval_ms / 1000):
            for partition in self._partitions():
                for step in (partition.upkeep.collect, partition.upkeep.scrub):
                    try:
                        self._slowly(step)
                    except (RezoneError, OSError) as error:
                        _log.warning(
                            "cannot collect or scrub",
                            partition=partition.partition_id,
                            error=str(error),
                        )
                    except Exception:  # noqa: BLE001 - told with its trace
                        UNEXPECTED.failed("collect or scrub")

    def _slowly(self, step: Callable[[], bool]) -> None:
        """Make a due pass; it takes a small share of the time, whoever else waits."""
        rest = 100 / self._settings.collect_percent_max - 1
        while True:
            begun = self._clock.monotonic()
            more = step()
            if self._stopping.wait((self._clock.monotonic() - begun) * rest) or not more:
                return
