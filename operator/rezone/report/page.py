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
from rezone.report.compared import compared_tasks, compared_transfers
from rezone.report.pictures import Picture
from rezone.report.task import TaskReport
from rezone.report.transfer import TransferReport

_FOLDER: Final = Path(__file__).parent / "page"
_STYLE: Final = (_FOLDER / "report.css").read_text(encoding="utf-8")
STYLE_SOURCE: Final = (
    f"'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'"
)
"""The style sheet in the words of a content security policy."""


def report_page(report: TaskReport | TransferReport, made: datetime) -> str:
    """Return the page of a report that was read at this time."""
    if isinstance(report, TransferReport):
        compared, template = compared_transfers(report), "transfer.html"
        drawn: dict[str, Picture | None] = {"timeline": pictures.timeline(report.states)}
    else:
        compared, template = compared_tasks(report), "report.html"
        drawn = {
            "done": pictures.done_picture(report),
            "timeline": pictures.timeline(report.states, report.transfers),
            "outages": pictures.outage_picture(report),
        }
    return (
        _environment()
        .get_template(template)
        .render(
            report=report,
            made=made,
            compared=compared,
            waits=pictures.waits_picture(report.waits),
            style=Markup(_STYLE),  # noqa: S704 - a file of ours
            policy=f"default-src 'none'; style-src {STYLE_SOURCE}; "
            "base-uri 'none'; form-action 'none'",
            label_width=pictures.LABEL_WIDTH,
            bars_width=pictures.BARS_WIDTH,
            row_height=pictures.ROW_HEIGHT,
            drawn_max=pictures.TRANSFERS_DRAWN_MAX,
            **drawn,
        )
    )


def _environment() -> Environment:
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
    return environment
