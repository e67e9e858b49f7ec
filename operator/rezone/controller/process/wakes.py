"""What the watches tell: remembered, and passed on to the queue once this process leads.

A watch that began before tells nothing twice: who leads later begins with every object that is
known by then, as a process does that begins to watch.

Concurrency: `wake` and `wake_all_zones` are called from any thread (Kopf's), all else on the loop.
"""

import asyncio
from collections.abc import Callable, Mapping

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.work.keys import Kind, ObjectKey


class Wakes:
    """The way from the watches to the coordinator; before, `on_zone` hears of changed zones."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_zone: Callable[[ObjectKey], None]
    ) -> None:
        self._loop = loop
        self._on_zone = on_zone
        self._told: dict[ObjectKey, str] = {}
        self._coordinator: Coordinator | None = None

    @property
    def told(self) -> Mapping[ObjectKey, str]:
        """The resourceVersions of all objects, as the watches have told them by now."""
        return dict(self._told)

    def wake(self, key: ObjectKey, version: str = "", *, gone: bool = False) -> None:
        """Wake an object; `version` is its resourceVersion as a watch has told, `gone` its end.

        Without a version it is woken by another object's change.
        """
        self._loop.call_soon_threadsafe(self._take, key, version, gone)

    def wake_all_zones(self) -> None:
        """Wake every zone: something they all look at has changed."""
        self._loop.call_soon_threadsafe(self._take_all)

    def pass_on(self, coordinator: Coordinator) -> None:
        """Pass on what is known, and all that comes."""
        self._coordinator = coordinator
        for key, version in self.told.items():
            self._take(key, version, gone=False)

    def _take(self, key: ObjectKey, version: str, gone: bool) -> None:  # noqa: FBT001
        if gone:
            self._told.pop(key, None)
        elif version:
            self._told[key] = version
        if self._coordinator is not None:
            if version:
                self._coordinator.metrics.note_seen(key, version)
            self._coordinator.queue.put(key)
            return
        if version and key.kind is Kind.ZONE:
            self._on_zone(key)

    def _take_all(self) -> None:
        if self._coordinator is not None:
            self._coordinator.wake_all_zones()
