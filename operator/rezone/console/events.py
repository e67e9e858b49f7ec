"""Live updates: the sections of a page that have changed, as server-sent events.

A stream reads the objects again and again, and sends what differs from what it sent before. All of
it is bounded: how many streams there are, in all and of one user, how long each lasts (browsers
come again by themselves), and how much of its time a stream reads: the larger a zone is, the less
often.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from rezone.kube.api.errors import KubeError, UnauthenticatedError

Load = Callable[[], Awaitable[Mapping[str, str]]]
"""Returns the sections of a page as they are now, by their ids."""

NOTHING: Final = ": nothing new\n\n"


@dataclass(frozen=True, kw_only=True)
class EventSettings:
    """How often is looked, and the limits."""

    streams_max: int = 16
    # One user's pages leave room for those of others.
    streams_each_max: int = 16
    pause_seconds: float = 1.0
    # Reading takes at most a twentieth of the time: a large zone is not read all the time.
    pause_by_cost: float = 19.0
    quiet_seconds_max: float = 15.0
    stream_seconds_max: float = 900.0


class EventStreams:
    """All streams of a process: counts them, and ends them when the process ends."""

    def __init__(self, settings: EventSettings) -> None:
        self.settings = settings
        self.open: Counter[str] = Counter()
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all streams; for the event loop's thread."""
        self._closing.set()

    def answer(self, load: Load, user: str = "") -> "EventStream":
        """Return the answer that streams what `load` returns, for one of the users."""
        return EventStream(self, load, user)

    def full(self, user: str) -> bool:
        """Return whether the user may have no further stream now."""
        all_open, settings = self.open.total(), self.settings
        return all_open >= settings.streams_max or self.open[user] >= settings.streams_each_max

    @contextlib.contextmanager
    def counted(self, user: str) -> Iterator[None]:
        """Count a stream of the user while it is open."""
        self.open[user] += 1
        try:
            yield
        finally:
            self.open[user] -= 1
            # Who has none is forgotten: users come and go, and their tokens too.
            self.open += Counter()

    async def wait(self, seconds: float) -> bool:
        """Wait for a time; return whether the process ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()


class EventStream(StreamingResponse):
    """One stream; refused where there are as many as there may be."""

    def __init__(self, streams: EventStreams, load: Load, user: str) -> None:
        super().__init__(changes(streams, load), media_type="text/event-stream")
        self._streams = streams
        self._user = user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the browser leaves, or one of the limits is reached."""
        if self._streams.full(self._user):
            full = PlainTextResponse("too many pages are live\n", HTTPStatus.SERVICE_UNAVAILABLE)
            await full(scope, receive, send)
            return
        with self._streams.counted(self._user):
            await super().__call__(scope, receive, send)


async def changes(
    streams: EventStreams, load: Load, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[str]:
    """Yield events: sections that have changed, problems, and now and then nothing."""
    settings = streams.settings
    end = clock() + settings.stream_seconds_max
    sent: dict[str, str] = {}
    told = clock()
    while clock() < end:
        begun = clock()
        try:
            events = await _look(load, sent)
        except UnauthenticatedError as error:
            # The token has expired, and will not come back: the browser asks again with another.
            yield _problem(error)
            return
        cost = clock() - begun
        if not events and clock() - told >= settings.quiet_seconds_max:
            events = [NOTHING]
        for each in events:
            told = clock()
            yield each
        if await streams.wait(max(settings.pause_seconds, cost * settings.pause_by_cost)):
            return


async def _look(load: Load, sent: dict[str, str]) -> list[str]:
    """Return the events of what has changed since `sent`, which is brought up to date.

    Raises UnauthenticatedError when the API server does not know the user any more.
    """
    try:
        sections = await load()
    except UnauthenticatedError:
        raise
    except KubeError as error:
        problem = _problem(error)
        if sent.get("") == problem:
            return []
        sent[""] = problem
        return [problem]
    recovered = [event("recovered", {})] if sent.pop("", "") else []
    changed = {name: html for name, html in sections.items() if sent.get(name) != html}
    sent.update(changed)
    return [*recovered, *(event("section", {"id": n, "html": h}) for n, h in changed.items())]


def _problem(error: KubeError) -> str:
    return event("problem", {"problem": str(error)[:500]})


def event(name: str, data: Mapping[str, str]) -> str:
    """Return one event; JSON has no line breaks, which would end it early."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
