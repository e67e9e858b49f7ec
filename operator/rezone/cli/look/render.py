"""Views as rich draws them on a terminal: bars, colours, tables.

Every text of the API server goes through `clean` and `Text`: it is neither markup nor an order to
the terminal.
"""

from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rezone.cli.look import text
from rezone.cli.look.explain import Explanation
from rezone.cli.look.views import PartitionMap, Progress, TaskRow, Top, ZoneList
from rezone.domain.routing.partition_map import LEGEND, WIDTH_MIN
from rezone.report.document import Document

BAR_COLUMNS: Final = 20
_MARKS: Final = {
    "L": "bold green",
    "s": "cyan",
    "f": "blue",
    "l": "yellow",
    ".": "bright_black",
    "#": "green",
    "=": "blue",
}
_ENDS: Final = {"Succeeded": "green", "Failed": "red", "Cancelled": "yellow"}


def render(view: Document, width: int) -> RenderableType:
    """Return a view as a terminal of so many columns shows it."""
    match view:
        case ZoneList():
            return _zones(view)
        case Progress():
            return _progress(view)
        case PartitionMap():
            return _map(view, width)
        case Top():
            return _top(view)
        case Explanation():
            return _explanation(view)
    return Text(text.text_of(view, max(width, WIDTH_MIN)))


def trouble_line(trouble: str) -> Text:
    """Return the line that says that what is shown may be old."""
    return Text(f"may be old: {text.clean(trouble)}", style="yellow")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _zones(view: ZoneList) -> RenderableType:
    if not view.items:
        return Text("there is no zone")
    table = _table("NAMESPACE", "NAME", "READY", "REASON", "PARTITIONS", "", "NODES", "TASK")
    for row in view.items:
        namespace, name, ready, reason, partitions, nodes, task = map(_plain, text.zone_cells(row))
        ready.stylize(_ready_style(row.ready))
        bar = _bar(row.partitions_ready, row.partitions, width=10)
        table.add_row(namespace, name, ready, reason, partitions, bar, nodes, task)
    return table


def _progress(view: Progress) -> RenderableType:
    beside = [_plain(line) for line in text.beside_tasks(view)]
    if view.tasks:
        return Group(_tasks(view.tasks), *beside)
    return Group(*beside) if beside else _plain(f"zone {view.zone} has no RebalanceTask")


def _tasks(rows: tuple[TaskRow, ...]) -> RenderableType:
    names = ("TASK", "STATE", "", "%", "MOVES", "LEADERS", "ROWS", "MB", "MB/S", "SKEW", "LEFT")
    table = _table(*names)
    waits = []
    for row in rows:
        left = "-" if row.seconds_left is None else text.duration(row.seconds_left)
        table.add_row(
            _plain(row.name),
            _plain(row.state, _ENDS.get(row.state, "bold")),
            ProgressBar(total=1.0, completed=row.share, width=BAR_COLUMNS),
            f"{row.share:.0%}",
            f"{row.moves_done}/{row.moves_total}",
            f"{row.leader_moves_done}/{row.leader_moves_total}",
            f"{row.rows_done:,}/{row.rows_total:,}",
            f"{row.bytes_done / 1e6:,.0f}/{row.bytes_total / 1e6:,.0f}",
            f"{row.bytes_per_second / 1e6:,.0f}",
            text.skew(row),
            left,
        )
        if row.waiting_for:
            waits.append(_plain(f"{row.name} waits: {row.waiting_for}", "yellow"))
    return Group(table, *waits)


def _map(view: PartitionMap, width: int) -> RenderableType:
    lines = text.map_lines(view, max(width, WIDTH_MIN))
    return Group(*(_coloured(line) for part in lines for line in part.splitlines()))


def _coloured(line: str) -> Text:
    """Return a line of a map; only the cells of a node's row have colours, and the legend."""
    shown = _plain(line)
    if line == LEGEND:
        return shown
    if line.startswith("node "):
        begin = len(line) - len(line.removeprefix("node ").lstrip("0123456789").lstrip())
        for at in range(begin, len(line)):
            if line[at] in _MARKS:
                shown.stylize(_MARKS[line[at]], at, at + 1)
    return shown


def _top(view: Top) -> RenderableType:
    zone = view.zone
    parts: list[RenderableType] = [_plain(text.headline(zone), _ready_style(zone.ready))]
    if view.tasks:
        parts.append(_tasks(view.tasks))
    table = _table("NODE", "STATE", "LEADERS", "", "REPLICAS", "", "LEARNERS", "DOMAIN", "HOST")
    most_led = max((row.leaders for row in view.nodes), default=0)
    held = {row.id: row.leaders + row.followers + row.learners for row in view.nodes}
    most_held = max(held.values(), default=0)
    for row in view.nodes:
        state = row.state + (f" (maintenance: {row.maintenance})" if row.maintenance else "")
        table.add_row(
            str(row.id),
            _plain(state, "green" if row.state == "Active" else "yellow"),
            str(row.leaders),
            _bar(row.leaders, most_led, width=12),
            str(held[row.id]),
            _bar(held[row.id], most_held, width=12),
            Text(str(row.learners), style="yellow" if row.learners else ""),
            _plain(row.failure_domain or "-"),
            _plain(row.node or "-"),
        )
    header, *cells = text.rate_cells(view)
    rates = _table(*header)
    for each in cells:
        rates.add_row(*each)
    unknown = [_plain(each, "yellow") for each in text.unknown_rates(view)]
    return Group(*parts, "", table, "", rates, *unknown)


def _explanation(view: Explanation) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, said in text.explanation_parts(view):
        style = "yellow" if label == "Why" else "green" if label == "You can" else ""
        table.add_row(_plain(label), _plain(said, style))
    return table


def _bar(count: int, most: int, *, width: int) -> ProgressBar:
    return ProgressBar(total=max(1, most), completed=count, width=width)


def _plain(said: str, style: str = "") -> Text:
    return Text(text.clean(said), style=style)


def _ready_style(ready: str) -> str:
    return {"True": "green", "False": "red"}.get(ready, "yellow")
