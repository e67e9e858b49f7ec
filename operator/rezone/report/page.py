"""A report as one HTML file, which loads nothing and runs nothing.

What objects say is escaped, and the page's own policy forbids what is not its one style sheet:
neither a value that was not escaped nor a browser's extension can make it ask anybody.
"""

import base64
import hashlib
from datetime import datetime
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rezone.report import pictures, words
from rezone.report.task import TaskReport

_FOLDER: Final = Path(__file__).parent / "page"
_STYLE: Final = (_FOLDER / "report.css").read_text(encoding="utf-8")
STYLE_SOURCE: Final = (
    f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)
"""The style sheet in the words of a content security policy."""


def report_page(report: TaskReport, made: datetime) -> str:
    """Return the page of a report that was read at this time."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": words.bytes_text,
        "seconds": words.seconds_text,
        "time": words.time_text,
    }
    return environment.get_template("report.html").render(
        report=report,
        made=made,
        style=Markup(_STYLE),  # noqa: S704 - a file of ours
        policy=f"default-src 'none'; style-src {STYLE_SOURCE}; base-uri 'none'; form-action 'none'",
        done=pictures.done_picture(report),
        timeline=pictures.timeline(report),
        waits=pictures.waits_picture(report),
        outages=pictures.outage_picture(report),
        label_width=pictures.LABEL_WIDTH,
        bars_width=pictures.BARS_WIDTH,
        row_height=pictures.ROW_HEIGHT,
        drawn_max=pictures.TRANSFERS_DRAWN_MAX,
    )
