"""Templates and what they may use; every value is escaped, an unknown one is an error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rezone.console.views import maps
from rezone.console.views.partitions import PAGE_PARTITIONS
from rezone.console.views.zones import is_bad
from rezone.report import words

_FOLDER: Final = Path(__file__).parent
STATIC_FOLDER: Final = _FOLDER / "static"


class Pages:
    """Renders pages and their sections."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "bytes": words.bytes_text,
            "milliseconds": words.milliseconds_text,
            "seconds": words.seconds_text,
            "time": words.time_text,
            "nodes": words.nodes_text,
        }
        self._environment.globals |= {
            "matrix": maps.matrix,
            "overview": maps.overview,
            "bar": maps.bar,
            "is_bad": is_bad,
            "mark_words": maps.WORDS,
            "page_partitions": PAGE_PARTITIONS,
        }

    def page(self, name: str, **values: Any) -> str:
        """Return a whole page."""
        return self._environment.get_template(f"{name}.html").render(**values)

    def sections(self, page: str, names: tuple[str, ...], **values: Any) -> dict[str, str]:
        """Return the sections of a page by their names: what its event stream sends, too.

        A page has a template of its own for a section, or the one of all pages.
        """
        select = self._environment.select_template
        return {
            name: select([f"{page}_{name}.html", f"{name}.html"]).render(**values) for name in names
        }


def as_markup(sections: Mapping[str, str]) -> dict[str, Markup]:
    """Return rendered sections as what needs no escaping any more."""
    return {name: Markup(html) for name, html in sections.items()}  # noqa: S704 - it is rendered
