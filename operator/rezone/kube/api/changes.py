"""Says that objects have changed, by a watch: for displays, which then read what they show.

A watch that the server ends goes on where it was. One that has expired (410), or whose connection
breaks, begins again at the present and counts as a change, because something may have been
missed. Between two attempts is a pause that grows up to `retry_seconds_max`. No object is kept.

Concurrency: a `ChangeWatch` belongs to the event loop that runs it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rezone.kube.api.connection import Connection, NotSentError, RefusedError, UnansweredError
from rezone.kube.api.kinds import Kind

EXPIRED: Final = 410


@dataclass(frozen=True, kw_only=True)
class ChangeSettings:
    """How a watch is kept up."""

    watch_seconds: int = 240
    silence_margin_seconds: float = 30.0
    begin_timeout_seconds: float = 15.0
    retry_seconds: float = 0.5
    retry_seconds_max: float = 10.0


@dataclass
class ChangeWatch:
    """Calls `changed` after each change of an object of a kind in a namespace (None: in all).

    `trouble` says why nothing comes, and is empty while connected.
    """

    connection: Connection
    kind: Kind
    namespace: str | None
    changed: Callable[[], None]
    labels: Mapping[str, str] = field(default_factory=dict)
    settings: ChangeSettings = field(default_factory=ChangeSettings)
    trouble: str = ""

    async def run(self) -> None:
        """Watch until cancelled."""
        pause = self.settings.retry_seconds
        while True:
            try:
                version = await self._begin()
                pause = self.settings.retry_seconds
                while True:
                    version = await self._watch(version)
            except RefusedError as error:
                self.trouble = "" if error.code == EXPIRED else str(error)
            except (NotSentError, UnansweredError, TimeoutError) as error:
                self.trouble = str(error) or type(error).__name__
            except (ValueError, KeyError, TypeError) as error:
                self.trouble = f"no event of a watch: {error!r}"
            self.changed()
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.settings.retry_seconds_max)

    async def _begin(self) -> str:
        """Return the version of the present, which counts as a change."""
        async with asyncio.timeout(self.settings.begin_timeout_seconds):
            query = self._query({"limit": "1"})
            found = await self.connection.request("GET", self._path, query=query)
        self._note()
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Take events until the server ends the watch; return the version to go on at."""
        settings = self.settings
        query = self._query(
            {
                "watch": "1",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(settings.watch_seconds),
            }
        )
        silence = settings.watch_seconds + settings.silence_margin_seconds
        events = 0
        async for event in self.connection.lines(self._path, query, silence_seconds=silence):
            item, events = event["object"], events + 1
            if event["type"] == "ERROR":
                code, said = int(item.get("code", 500)), str(item.get("message", ""))
                raise RefusedError(code, str(item.get("reason", "")), said)
            version = str(item["metadata"]["resourceVersion"])
            if event["type"] != "BOOKMARK":
                self._note()
        if not events:
            # A server that ends watches at once must not be asked in a tight loop.
            await asyncio.sleep(settings.retry_seconds)
        return version

    def _note(self) -> None:
        self.trouble = ""
        self.changed()

    @property
    def _path(self) -> str:
        return self.kind.path(self.namespace)

    def _query(self, query: dict[str, str]) -> dict[str, str]:
        if self.labels:
            selector = ",".join(f"{key}={value}" for key, value in self.labels.items())
            query["labelSelector"] = selector
        return query
