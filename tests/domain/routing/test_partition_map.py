"""The picture of a zone, to the character."""

import pytest

from rezone.domain.routing import partition_map, routes
from rezone.domain.routing.partition_map import Marks, marks_of_routes, picture
from rezone.wire.messages import LeaderAndIsr, NodeId


def marks_of(*replicas: tuple[NodeId, ...]) -> Marks:
    """Return the marks of new partitions, each of these nodes, of which the first leads."""
    return marks_of_routes([routes.initial(nodes, 1) for nodes in replicas])


@pytest.mark.proves("B-10")
def test_the_grid_shows_every_role() -> None:
    """A replica that is not in sync would look like one that is."""
    record = LeaderAndIsr(
        leader=10,
        leader_epoch=1,
        isr=(10, 1, 2),
        coordinator_epoch=1,
        replicas=(10, 1, 2, 3),
        hot_standby_replica=1,
        iss=(1,),
    )
    text = picture(marks_of_routes([record, routes.initial((2, 10), 1)]), nodes=[4])
    assert text.splitlines() == [
        "         01",
        "node 1   s.",
        "node 2   fL",
        "node 3   l.",
        "node 4   ..",
        "node 10  Lf",
        "",
        partition_map.LEGEND,
    ]


@pytest.mark.parametrize("width", [40, 77, 100])
@pytest.mark.parametrize("partitions", [1, 33, 400, 2000])
def test_no_line_is_wider_than_asked(partitions: int, width: int) -> None:
    """The terminal would break the lines, and columns stand under the wrong partition."""
    marks = marks_of(*((p % 100, 100 + p % 7) for p in range(partitions)))
    lines = picture(marks, width=width).splitlines()
    drawn = [line for line in lines if line.startswith("node")]
    assert drawn
    assert max(map(len, drawn)) <= width


def test_partition_numbers_stand_over_their_columns() -> None:
    """The map would name the wrong partition."""
    lines = picture(marks_of(*[(7,)] * 12)).splitlines()
    assert lines[0] == " " * 8 + " " * 10 + "11"
    assert lines[1] == " " * 8 + "012345678901"


@pytest.mark.proves("B-10")
def test_a_large_zone_is_drawn_as_bars() -> None:
    """Thousands of columns would fill many screens."""
    marks = marks_of(*((0, 1) if p % 4 else (1, 2) for p in range(1000)))
    text = picture(marks, nodes=[3], width=60)
    assert text.splitlines() == [
        "node 0  ########################          750 led, 750 held",
        "node 1  ########========================  250 led, 1000 held",
        "node 2  ========                          0 led, 250 held",
        "node 3                                    0 led, 0 held",
        "",
        "1000 partitions  # led  = held besides",
    ]


def test_one_replica_is_still_seen_in_its_bar() -> None:
    """A node that has just received its first partition would look empty."""
    assert "node 1  # " in picture(marks_of(*((0,) if p else (1,) for p in range(9000))))


def test_an_empty_zone_and_a_narrow_screen() -> None:
    """The command would fail on a zone that was just made."""
    assert picture([]) == partition_map.LEGEND + "\n"
    assert "node 1" in partition_map.bars([], nodes=[1])
    with pytest.raises(ValueError, match="width of 39 is too small"):
        picture(marks_of((0, 1)), width=39)
