"""When a data node gives way because its disk has little room left."""

from __future__ import annotations

from pathlib import Path

import pytest

from rezone.datanode.disk.space import LOOK_SECONDS, DiskSpace
from rezone.datanode.settings import SystemClock
from rezone.wire.errors import NoSpaceError

GIB = 1 << 30


@pytest.mark.proves("NW-04")
@pytest.mark.parametrize(
    ("total", "reserve"), [(100 * GIB, GIB), (10 * GIB, GIB), (GIB, GIB // 10)]
)
def test_of_a_small_disk_a_tenth_is_kept_free(total: int, reserve: int) -> None:
    """A small volume would be full from the beginning, a large one have no room to compact."""
    free = total
    space = DiskSpace(SystemClock(), Path("/"), GIB, lambda _: free, lambda _: total)
    assert not space.look(0.0)
    assert not space.short
    free = reserve - 1
    assert space.look(LOOK_SECONDS)
    assert space.short
    assert space.reserve == reserve
    space.require()
    free = reserve // 2 - 1
    assert not space.look(2 * LOOK_SECONDS), "that it is short is no news"
    with pytest.raises(NoSpaceError):
        space.require()


def test_a_volume_that_grows_has_its_reserve_again() -> None:
    """It would take rows without room for what they cause."""
    total = GIB
    space = DiskSpace(SystemClock(), Path("/"), GIB, lambda _: GIB // 2, lambda _: total)
    space.look(0.0)
    assert not space.short
    total = 20 * GIB
    assert space.look(LOOK_SECONDS)
    assert space.short


@pytest.mark.proves("NW-04")
def test_room_for_merges_is_what_is_free_above_what_refuses_rows() -> None:
    """A merge would take the room that handovers and truncation need."""
    space = DiskSpace(SystemClock(), Path("/"), GIB, lambda _: GIB, lambda _: 100 * GIB)
    assert space.has_room(2 * GIB), "what nobody has looked at stops nothing"
    space.look(0.0)
    assert space.has_room(GIB // 2)
    assert not space.has_room(GIB // 2 + 1)
