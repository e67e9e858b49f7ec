"""Documents for programs: one JSON or YAML document of a view."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click
import yaml

from rezone.resources.model import Model

C = TypeVar("C", bound=Callable[..., Any])

FORMATS = ("text", "json", "yaml")


def output_option(command: C) -> C:
    """Give a command the option that says for whom it writes."""
    return output_choice(*FORMATS)(command)


def output_choice(*forms: str) -> Callable[[C], C]:
    """Return what gives a command that option, with forms of its own."""
    return click.option(
        "--output",
        "-o",
        type=click.Choice(forms),
        default="text",
        show_default=True,
        help="For people, or a document for programs (docs/use/command-line.md has its fields).",
    )


def document(view: Model, form: str, *, stream: bool = False) -> str:
    """Return a view as a document; in a stream JSON has one line each, and YAML a separator."""
    body = view.dump()
    if form == "yaml":
        text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
        return ("---\n" + text if stream else text).rstrip("\n")
    return json.dumps(body, indent=None if stream else 2)
