"""Pictures as SVG: the map of one page of partitions, and the overview of all. Pure.

Colours are in the style sheet; letters and outlines say the same for who does not see colours.
Numbers and fixed words alone go into the text, so nothing of an object is markup.
"""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from rezone.console.views.partitions import Health, OverviewCell, PartitionRow
from rezone.domain.routing.partition_map import Mark

CELL: Final = 18
MARGIN: Final = 72
HEAD: Final = 34
SMALL: Final = 11
OVERVIEW_COLUMNS: Final = 64

WORDS: Final = {
    Mark.LEADER: "leader",
    Mark.HOT_STANDBY: "hot standby",
    Mark.FOLLOWER: "follower",
    Mark.LEARNER: "learner",
    Mark.NONE: "none",
}
_SHAPES: Final = {
    Health.IN_SYNC: "rect",
    Health.CATCHING_UP: "rect",
    Health.BELOW_MINIMUM: "circle",
}
CLASSES: Final = {
    Health.IN_SYNC: "ok",
    Health.CATCHING_UP: "behind",
    Health.BELOW_MINIMUM: "bad",
}


def matrix(rows: Sequence[PartitionRow], nodes: Sequence[int]) -> Markup:
    """Return the map: a row for each data node, a column for each partition."""
    width, height = MARGIN + CELL * len(rows), HEAD + CELL * len(nodes)
    line_of = {node: HEAD + CELL * at for at, node in enumerate(nodes)}
    parts = [
        _opening("matrix", width, height),
        ' role="img" aria-label="Which data node holds which partition; the table has the same">',
    ]
    parts += [
        f'<text class="label" x="0" y="{y + 13}">node {node}</text>'
        f'<line x1="0" y1="{y}" x2="{width}" y2="{y}"/>'
        for node, y in line_of.items()
    ]
    for at, row in enumerate(rows):
        parts.append(_column(row, MARGIN + CELL * at, line_of))
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 - numbers and fixed words alone


def _column(row: PartitionRow, x: int, line_of: dict[int, int]) -> str:
    middle = x + CELL // 2
    head = f'<text class="head" transform="translate({middle + 4},{HEAD - 4}) rotate(-90)">'
    parts = [f"{head}{row.index}</text>"]
    for holder in row.holders:
        y = line_of.get(holder.node)
        if y is None:
            continue
        leaves = bool(row.wanted) and holder.node not in row.wanted
        kind = f"m-{holder.mark.value}{' leaves' if leaves else ''}"
        title = f"partition {row.index}, node {holder.node}: {WORDS[holder.mark]}"
        parts.append(
            f'<g class="{kind}"><title>{title}{", leaves" if leaves else ""}</title>'
            f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" rx="2"/>'
            f'<text x="{middle}" y="{y + 13}">{holder.mark.value}</text></g>'
        )
    held = {holder.node for holder in row.holders}
    parts += [
        f'<rect class="comes" x="{x + 3}" y="{line_of[node] + 3}" width="{CELL - 6}" '
        f'height="{CELL - 6}" rx="2"><title>partition {row.index} shall come to node {node}'
        "</title></rect>"
        for node in row.wanted
        if node not in held and node in line_of
    ]
    return "".join(parts)


def overview(cells: Sequence[OverviewCell], address: str) -> Markup:
    """Return all partitions as small cells, each a link to the page that shows it.

    `address` is that of the zone's page, of letters, digits, "-" and "/" alone.
    """
    columns = min(OVERVIEW_COLUMNS, max(1, len(cells)))
    lines = -(-len(cells) // columns)
    width, height = SMALL * columns, SMALL * lines
    parts = [
        _opening("overview", width, height),
        ' role="group" aria-label="All partitions">',
    ]
    for at, cell in enumerate(cells):
        x, y = SMALL * (at % columns), SMALL * (at // columns)
        moves = f", {cell.moving} moving" if cell.moving else ""
        names = f"{cell.first}" if cell.first == cell.last else f"{cell.first} to {cell.last}"
        kind = f"{CLASSES[cell.health]}{' moving' if cell.moving else ''}"
        # Hundreds of stops would keep the keyboard from the rest; the pages below have links.
        parts.append(
            f'<a href="{address}?page={cell.page}" tabindex="-1">'
            f'<{_shape(cell.health, x, y)} class="{kind}">'
            f"<title>{names}: {cell.health.value}{moves}</title></{_SHAPES[cell.health]}></a>"
        )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 - numbers and fixed words alone


def _shape(health: Health, x: int, y: int) -> str:
    """Return a shape that tells the health without its colour: square, low bar, circle."""
    side = SMALL - 2
    if health is Health.BELOW_MINIMUM:
        return f'circle cx="{x + SMALL / 2}" cy="{y + SMALL / 2}" r="{side / 2}"'
    low = side // 2 if health is Health.CATCHING_UP else 0
    return f'rect x="{x + 1}" y="{y + 1 + low}" width="{side}" height="{side - low}"'


def _opening(kind: str, width: int, height: int) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg class="{kind}" {size}'


def bar(part: int, among: int, most: int) -> Markup:
    """Return a bar: `part` of `among` dark, and `among` of `most` in all."""
    length = 160
    full = round(length * among / most) if most else 0
    dark = round(length * part / most) if most else 0
    return Markup(  # noqa: S704 - numbers alone
        f'<svg class="bar" width="{length}" height="10" aria-hidden="true">'
        f'<rect class="held" width="{full}" height="10"/>'
        f'<rect class="led" width="{dark}" height="10"/></svg>'
    )
