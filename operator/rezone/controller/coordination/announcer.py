"""Writes announcements as events beside the passes: nothing waits for them, nothing needs them."""

import asyncio
from collections.abc import Sequence

import structlog

from rezone.domain.assignment.announcements import Announcement
from rezone.kube.api.names import AnyObject
from rezone.kube.stored.events import EventRecorder, EventType

log = structlog.get_logger(__name__)

WAITING_MAX = 256


class Announcer:
    """One queue of events; over its limit new ones are dropped, for the log has them too.

    Concurrency: one event loop; one event is written at a time.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._queue: asyncio.Queue[tuple[AnyObject, Announcement]] = asyncio.Queue(WAITING_MAX)
        self._writer: asyncio.Task[None] | None = None

    def announce(self, obj: AnyObject, announcements: Sequence[Announcement]) -> None:
        """Queue events about an object."""
        if announcements and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())
        for each in announcements:
            try:
                self._queue.put_nowait((obj, each))
            except asyncio.QueueFull:
                log.info("event dropped", reason=each.reason, message=each.message)

    async def close(self) -> None:
        """Stop writing; what waits is dropped."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            obj, each = await self._queue.get()
            kind = EventType.WARNING if each.warning else EventType.NORMAL
            await self._recorder.emit(obj, kind, each.reason, each.message, key=each.key)
