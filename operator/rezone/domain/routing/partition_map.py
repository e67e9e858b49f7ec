"""The picture of a zone: which node holds which partition, and as what (B-10).

Plain text, without colours: a row for each node, a column for each partition, wrapped to the
width. L leads, s is a hot standby, f follows in sync, l learns (not in sync yet), . is nothing.
A zone too large for that is drawn as a bar for each node.
"""

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rezone.domain.routing.routes import hot_standbys
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId

WIDTH_DEFAULT: Final = 100
WIDTH_MIN: Final = 40
GRID_PARTITIONS_MAX: Final = 512
"""Above this many partitions `picture` draws bars instead of the grid."""

LEGEND: Final = "L leader  s hot standby  f follower  l learner  . none"


class Mark(enum.StrEnum):
    """What a node is for a partition, as one character."""

    LEADER = "L"
    HOT_STANDBY = "s"
    FOLLOWER = "f"
    LEARNER = "l"
    NONE = "."


Marks = Sequence[Mapping[NodeId, Mark]]
"""For each partition the marks of the nodes that hold it."""


def marks_of_routes(records: Sequence[LeaderAndIsr]) -> Marks:
    """Return the marks of what is, from the route records."""
    return [_marks_of_record(record) for record in records]


def _marks_of_record(record: LeaderAndIsr) -> dict[NodeId, Mark]:
    hot = hot_standbys(record)
    marks = {}
    for node in record.replicas:
        if node == record.leader:
            marks[node] = Mark.LEADER
        elif node in hot:
            marks[node] = Mark.HOT_STANDBY
        else:
            marks[node] = Mark.FOLLOWER if node in record.isr else Mark.LEARNER
    return marks


def picture(marks: Marks, nodes: Collection[NodeId] = (), width: int = WIDTH_DEFAULT) -> str:
    """Return the map as text: the grid, or the bars of a large zone.

    `nodes` are drawn even when they hold nothing. Raises ValueError for a width below 40.
    """
    if len(marks) > GRID_PARTITIONS_MAX:
        return bars(marks, nodes, width)
    return grid(marks, nodes, width)


def grid(marks: Marks, nodes: Collection[NodeId] = (), width: int = WIDTH_DEFAULT) -> str:
    """Return the grid of nodes and partitions in bands of the width; see `picture`."""
    _check_width(width)
    shown = sorted({*nodes, *_nodes_of(marks)})
    label_width = max((len(_label(node)) for node in shown), default=0)
    columns = width - label_width - 2
    lines = []
    for start in range(0, len(marks), columns):
        band = range(start, min(start + columns, len(marks)))
        margin = " " * (label_width + 2)
        lines += [margin + line for line in _header(band)]
        for node in shown:
            cells = "".join(marks[partition].get(node, Mark.NONE) for partition in band)
            lines.append(f"{_label(node):<{label_width}}  {cells}")
        lines.append("")
    lines.append(LEGEND)
    return "\n".join(lines) + "\n"


def _header(band: Sequence[PartitionId]) -> list[str]:
    """Return the partition numbers, written downwards, one line for each digit."""
    digits = max(len(str(partition)) for partition in band)
    columns = [str(partition).rjust(digits) for partition in band]
    return ["".join(column[digit] for column in columns).rstrip() for digit in range(digits)]


def bars(marks: Marks, nodes: Collection[NodeId] = (), width: int = WIDTH_DEFAULT) -> str:
    """Return a bar for each node: # for partitions it leads, = for the others it holds."""
    _check_width(width)
    held = Counter(node for entry in marks for node in entry)
    led = Counter(node for entry in marks for node, mark in entry.items() if mark is Mark.LEADER)
    shown = sorted({*nodes, *held})
    most = max(held.values(), default=0)
    label_width = max((len(_label(node)) for node in shown), default=0)
    figures = {node: f"{led[node]} led, {held[node]} held" for node in shown}
    room = max(1, width - label_width - 4 - max(map(len, figures.values()), default=0))
    lines = []
    for node in shown:
        # Both ends are rounded from the whole, so that equal counts have equal bars.
        full = _scaled(held[node], most, room)
        leading = _scaled(led[node], most, room)
        bar = "#" * leading + "=" * (full - leading)
        lines.append(f"{_label(node):<{label_width}}  {bar:<{room}}  {figures[node]}")
    lines += ["", f"{len(marks)} partitions  # led  = held besides"]
    return "\n".join(lines) + "\n"


def _scaled(count: int, most: int, room: int) -> int:
    # What is there is seen: a node with one replica has a bar.
    return max(1, round(count * room / most)) if count else 0


def _nodes_of(marks: Marks) -> frozenset[NodeId]:
    return frozenset(node for entry in marks for node in entry)


def _label(node: NodeId) -> str:
    return f"node {node}"


def _check_width(width: int) -> None:
    if width < WIDTH_MIN:
        raise ValueError(f"a width of {width} is too small, {WIDTH_MIN} are needed")
