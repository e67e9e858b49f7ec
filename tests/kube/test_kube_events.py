"""Events: one per change, whoever writes it, and no burden for anybody."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from kube_helpers import NOW, stored_zone, zone_of

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import UnavailableError
from rezone.kube.api.kinds import Event
from rezone.kube.stored.events import EventLimits, EventRecorder, EventType
from standing_clock import StandingClock


class Sink:
    """Takes events, or fails."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.down = False

    async def create(self, _kind: Any, manifest: dict[str, Any]) -> dict[str, Any]:
        """Take an event."""
        if self.down:
            raise UnavailableError("down")
        self.events.append(manifest)
        return manifest


def recorder(sink: Sink, clock: StandingClock[datetime], **limits: Any) -> EventRecorder:
    """Return a recorder that writes to the sink."""
    settings = EventLimits(**limits)
    return EventRecorder(sink, instance="me", now=clock, limits=settings)  # type: ignore[arg-type]


async def test_one_event_per_change() -> None:
    """An event with every pass is what makes people ignore events."""
    sink = Sink()
    events = recorder(sink, StandingClock(NOW))
    zone = zone_of()
    assert await events.emit(zone, EventType.NORMAL, "Moved", "to node 3", key="op-1")
    assert not await events.emit(zone, EventType.NORMAL, "Moved", "to node 3 again", key="op-1")
    assert await events.emit(zone, EventType.NORMAL, "Moved", "to node 3", key="op-2")
    assert len(sink.events) == 2


async def test_noisy_object_is_cut_off_and_recovers() -> None:
    """One broken zone must not flood etcd, nor silence the others."""
    sink, clock = Sink(), StandingClock(NOW)
    events = recorder(sink, clock, burst_per_object=3, refill_seconds=60.0)
    noisy, quiet = zone_of(), zone_of(name="quiet")
    done = [await events.emit(noisy, EventType.WARNING, "Bad", str(i)) for i in range(5)]
    assert done == [True, True, True, False, False]
    assert await events.emit(quiet, EventType.WARNING, "Bad", "once")
    clock.now += timedelta(seconds=60)
    assert await events.emit(noisy, EventType.WARNING, "Bad", "later")


async def test_failure_is_no_error_and_is_tried_again() -> None:
    """A pass must not fail because an event could not be written."""
    sink = Sink()
    events = recorder(sink, StandingClock(NOW))
    sink.down = True
    assert not await events.emit(zone_of(), EventType.NORMAL, "Moved", "m")
    sink.down = False
    assert await events.emit(zone_of(), EventType.NORMAL, "Moved", "m")


async def test_memory_is_bounded() -> None:
    """An operator that lives for a year must not remember every event of it."""
    sink = Sink()
    events = recorder(sink, StandingClock(NOW), remembered_changes_max=4, remembered_objects_max=2)
    for i in range(10):
        await events.emit(zone_of(name=f"z{i}"), EventType.NORMAL, "Moved", "m")
    assert len(events._seen) == 4
    assert len(events._budget) == 2


@pytest.mark.apiserver
@pytest.mark.slow
async def test_real_event_is_one_for_two_processes(api: Kube, namespace: str) -> None:
    """A restarted operator would tell everything once more."""
    zone = await stored_zone(api, namespace)
    one = EventRecorder(api, instance="one")
    two = EventRecorder(api, instance="two")
    assert await one.emit(zone, EventType.WARNING, "NoLeader", "x" * 3000, key="k")
    assert not await two.emit(zone, EventType.WARNING, "NoLeader", "x" * 3000, key="k")
    (event,) = await api.list(Event, namespace)
    assert (event["type"], event["reason"], len(event["note"])) == ("Warning", "NoLeader", 1024)
    assert event["regarding"]["uid"] == zone.metadata.uid
