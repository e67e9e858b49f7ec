"""The event streams: what they send, and their limits."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from starlette.types import Message

from rezone.console.events import NOTHING, EventSettings, EventStreams, changes
from rezone.kube.api.errors import UnauthenticatedError, UnavailableError

Step = Mapping[str, str] | Exception


class Steps:
    """Answers each look with the next step; ends the streams after the last one."""

    def __init__(self, *steps: Step, **settings: float) -> None:
        self.streams = EventStreams(EventSettings(**{"pause_seconds": 0, **settings}))  # type: ignore[arg-type]  # numbers of any field
        self.steps = list(steps)
        self.now = 0.0
        self.waits: list[float] = []

    async def load(self) -> Mapping[str, str]:
        """Return or raise the next step, after a second of the clock."""
        self.now += 1
        step = self.steps.pop(0)
        if not self.steps:
            self.streams.close()
        if isinstance(step, Exception):
            raise step
        return step

    def clock(self) -> float:
        """Return the time."""
        return self.now

    async def sent(self) -> list[tuple[str, object]]:
        """Return the events by name, with their data."""
        found = [text async for text in changes(self.streams, self.load, self.clock)]
        return [_parsed(text) for text in found]


def _parsed(text: str) -> tuple[str, object]:
    if text == NOTHING:
        return ("", None)
    name, data, end, last = text.split("\n")
    assert (end, last) == ("", "")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def section(name: str, html: str) -> tuple[str, object]:
    """Return the event of one section."""
    return ("section", {"id": name, "html": html})


async def test_only_sections_that_have_changed_are_sent() -> None:
    """Pages would be replaced each second under the person's eyes, and large zones sent whole."""
    steps = Steps(
        {"head": "a", "map": "1"},
        {"head": "a", "map": "2\n<p>"},
        {"head": "a", "map": "2\n<p>"},
        pause_by_cost=0,
    )
    assert await steps.sent() == [
        section("head", "a"),
        section("map", "1"),
        section("map", "2\n<p>"),
    ]


async def test_a_problem_is_told_once_and_its_end_too() -> None:
    """A page would look live while the API server does not answer."""
    broken = UnavailableError("no connection")
    steps = Steps({"a": "1"}, broken, broken, {"a": "1"}, {"a": "1"}, pause_by_cost=0)
    assert await steps.sent() == [
        section("a", "1"),
        ("problem", {"problem": "no connection"}),
        ("recovered", {}),
    ]


async def test_a_quiet_stream_says_that_it_lives_and_ends_after_its_time() -> None:
    """A browser that is gone would be found never, and a stream would read for ever."""
    steps = Steps(*[{"a": "1"}] * 9, quiet_seconds_max=3, stream_seconds_max=6, pause_by_cost=0)
    assert await steps.sent() == [section("a", "1"), ("", None)]
    assert len(steps.steps) == 3


async def test_a_stream_waits_long_where_reading_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the routes of a large zone for each open page would load the API server."""
    steps = Steps({"a": "1"}, {"a": "1"}, pause_by_cost=19)
    waits = []

    async def wait(seconds: float) -> bool:
        waits.append(seconds)
        return not steps.steps

    monkeypatch.setattr(steps.streams, "wait", wait)
    await steps.sent()
    assert waits == [19, 19]


async def test_only_so_many_streams_are_open() -> None:
    """Pages left open would read without limit."""
    streams = EventStreams(EventSettings(streams_max=1))
    seen: list[list[Message]] = [[], []]

    async def load() -> Mapping[str, str]:
        if not seen[1]:
            await ask(1)
        streams.close()
        return {"a": "1"}

    async def ask(number: int) -> None:
        async def send(message: Message) -> None:
            seen[number].append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        await streams.answer(load)(scope, receive, send)

    await ask(0)
    assert [each[0]["status"] for each in seen] == [200, 503]
    assert not streams.open


async def test_one_user_s_pages_leave_room_for_others() -> None:
    """One person could have all pages that may be live, and all connections."""
    streams = EventStreams(EventSettings(streams_max=3, streams_each_max=2))
    with streams.counted("ann"):
        assert not streams.full("ann")
        with streams.counted("ann"):
            assert (streams.full("ann"), streams.full("bob")) == (True, False)
            with streams.counted("bob"):
                assert streams.full("eve")
    assert not streams.open


async def test_a_stream_ends_where_its_token_has_expired() -> None:
    """It would ask in vain for as long as it may last, and keep its place."""
    steps = Steps({"a": "1"}, UnauthenticatedError("Unauthorized"), {"a": "2"}, pause_by_cost=0)
    assert await steps.sent() == [section("a", "1"), ("problem", {"problem": "Unauthorized"})]
    assert len(steps.steps) == 1
