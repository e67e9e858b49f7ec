"""The demo's picture as SVG: throughput, write gaps, and the leader of each partition over time.

Written by hand: three panels of rectangles and lines need no library for plots, whose smallest
brings more than all that the demo uses. The colours are told apart by colour-blind people, too
(Okabe and Ito), and the legend has the numbers.
"""

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from rezone.cli.demo.history import (
    History,
    gaps_over,
    longest_gaps_ms,
    partitions_of,
    reigns,
    writes_a_second,
)

WIDTH: Final = 1000
LEFT: Final = 90
RIGHT: Final = 20
PLOT: Final = WIDTH - LEFT - RIGHT
PANEL: Final = 120
SPACE: Final = 56
WORDS_LINE: Final = 16
BUCKETS: Final = 220
LEADERS_HEIGHT_MAX: Final = 420
ROW_MAX: Final = 14.0
GAP_SECONDS: Final = 0.25
"""A partition that answers no write for so long is marked; its writer itself pauses 0.1 s."""
HAPPENED_MAX: Final = 20
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
UNKNOWN: Final = "#999999"


def picture_of(history: History) -> str:
    """Return the picture as an SVG document."""
    partitions = partitions_of(history)
    row = min(ROW_MAX, LEADERS_HEIGHT_MAX / max(1, len(partitions)))
    top = 68 + WORDS_LINE * ((len(history.happened[:HAPPENED_MAX]) + 1) // 2)
    tops = [top + (PANEL + SPACE) * panel for panel in range(3)]
    bottom = tops[2] + row * len(partitions)
    height = bottom + 70
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img" aria-labelledby="t d" '
            'font-family="sans-serif" font-size="12" fill="#222">'
        ),
        '<title id="t">What happened while partitions moved</title>',
        (
            f'<desc id="d">{len(partitions)} partitions over {history.seconds:.0f} seconds: '
            "answered writes a second, the longest write gap, the leader of each partition.</desc>"
        ),
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
        *_happened(history, top, bottom),
        *_curve(
            "Answered writes a second", writes_a_second(history, BUCKETS), tops[0], "#0072B2", ""
        ),
        *_curve(
            "Longest time between two answers of any partition, in milliseconds",
            longest_gaps_ms(history, BUCKETS),
            tops[1],
            "#D55E00",
            " ms",
        ),
        *_leaders(history, partitions, tops[2], row),
        *_axis(history, bottom),
        *_legend(history, height - 16),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(history: History, at: float) -> float:
    return LEFT + PLOT * min(1.0, max(0.0, (at - history.begun) / history.seconds))


def _text(x: float, y: float, said: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(_printable(said))}</text>'


def _printable(said: str) -> str:
    # XML has no form at all for most control characters.
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in said)


def _happened(history: History, top: float, bottom: float) -> list[str]:
    """Return a dashed line for what the demo did, with its number; the words stand above."""
    parts = []
    for number, (at, what) in enumerate(history.happened[:HAPPENED_MAX], start=1):
        x = _x(history, at)
        parts += [
            (
                f'<g><title>{escape(_printable(what))}</title><line x1="{x:.1f}" x2="{x:.1f}" '
                f'y1="{top - 24}" y2="{bottom:.1f}" stroke="#777" stroke-dasharray="3 3"/>'
            ),
            _text(x, top - 28, str(number), ' text-anchor="middle" font-weight="bold"'),
            "</g>",
        ]
        place = number - 1
        words = (LEFT + PLOT / 2 * (place % 2), 20.0 + WORDS_LINE * (place // 2))
        parts.append(_text(*words, f"{number}  {what}"))
    return parts


def _curve(title: str, values: Sequence[float], top: float, colour: str, unit: str) -> list[str]:
    most = max(values, default=0.0) or 1.0
    step = PLOT / len(values)
    points = " ".join(
        f"{LEFT + step * (i + 0.5):.1f},{top + PANEL * (1 - value / most):.1f}"
        for i, value in enumerate(values)
    )
    base = top + PANEL
    return [
        _text(LEFT, top - 6, title, ' font-weight="bold"'),
        f'<rect x="{LEFT}" y="{top}" width="{PLOT}" height="{PANEL}" fill="none" stroke="#ccc"/>',
        _text(LEFT - 6, top + 10, f"{most:,.0f}{unit}", ' text-anchor="end"'),
        _text(LEFT - 6, base, f"0{unit}", ' text-anchor="end"'),
        (
            f'<polygon points="{LEFT},{base} {points} {LEFT + PLOT},{base}" fill="{colour}" '
            'fill-opacity="0.2"/>'
        ),
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
    ]


def _leaders(history: History, partitions: Sequence[int], top: float, row: float) -> list[str]:
    """Return a line for each partition in its leaders' colours, with its write gaps in black."""
    parts = [
        _text(
            LEFT,
            top - 6,
            f"Leader of each partition; black: no answered write for over {GAP_SECONDS * 1000:.0f} "
            "ms",
            ' font-weight="bold"',
        )
    ]
    labelled = max(1, round(12 / row))
    for place, partition in enumerate(partitions):
        y = top + row * place
        if place % labelled == 0:
            parts.append(_text(LEFT - 6, y + min(row, 11), str(partition), ' text-anchor="end"'))
        for node, begin, end in reigns(history, partition):
            said = f"partition {partition}: data node {'?' if node is None else node}"
            parts.append(_block(_span(history, begin, end), (y, row), _colour(node), said))
        for begin, end in gaps_over(history, partition, GAP_SECONDS):
            said = f"partition {partition}: no write for {(end - begin) * 1000:.0f} ms"
            parts.append(_block(_span(history, begin, end), (y, row), "#000", said))
    return parts


def _span(history: History, begin: float, end: float) -> tuple[float, float]:
    """Return where a time begins on the picture, and its width."""
    x = _x(history, begin)
    # A gap of milliseconds in minutes would not be seen.
    return x, max(1.0, _x(history, end) - x)


def _block(across: tuple[float, float], down: tuple[float, float], colour: str, said: str) -> str:
    """Return a rectangle; `across` and `down` have where it begins and its size."""
    (x, width), (y, row) = across, down
    return (
        f'<rect x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{max(0.4, row * 0.86):.2f}" '
        f'fill="{colour}"><title>{escape(said)}</title></rect>'
    )


def _axis(history: History, bottom: float) -> list[str]:
    ticks = 5
    times = [history.seconds * i / ticks for i in range(ticks + 1)]
    return [
        _text(LEFT + PLOT * i / ticks, bottom + 18, f"{time:.0f} s", ' text-anchor="middle"')
        for i, time in enumerate(times)
    ]


def _legend(history: History, y: float) -> list[str]:
    nodes = sorted(set(history.leaders.values()))
    step = min(110.0, PLOT / max(1, len(nodes)))
    parts = []
    for place, node in enumerate(nodes):
        x = LEFT + step * place
        parts += [
            f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{_colour(node)}"/>',
            _text(x + 17, y, f"data node {node}"),
        ]
    return parts


def _colour(node: int | None) -> str:
    return UNKNOWN if node is None else COLOURS[node % len(COLOURS)]
