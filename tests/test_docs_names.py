"""What pages for users name is there: commands with their options, fields, settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rezone.cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for folder in ("start", "use", "operate")
    for page in (ROOT / "docs" / folder).rglob("*.md")
)
SPANS = "metrics.md"
"""It has names of spans that begin with `rezone`, too."""

PODS_FIELDS = {
    f"spec.{name}"
    for name in ("affinity", "containers", "runtimeClassName", "securityContext", "volumes")
}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of the `rezone` commands in a page, in lines and in blocks."""
    text = text.replace("\\\n", " ")
    for line in re.findall(r"(?:^(?:\$ )?(?:kubectl )?|`)rezone ([^`\n]+)", text, re.MULTILINE):
        yield re.split(r"\s[#|>&;]", line)[0].replace("[", "").replace("]", "").split()


def unknown_word(words: list[str]) -> str | None:
    """Return the first word that is no command or option of `rezone`; None where all are."""
    command: click.Command = main
    context = click.Context(main)
    for word in words:
        if word.startswith("-"):
            names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
            if word.partition("=")[0] not in (*names, "--help"):
                return word
        elif isinstance(command, click.Group):
            if word.isupper():
                return None  # any of them
            found = command.get_command(context, word)
            if found is None:
                return word
            command = found
    return None


def test_commands_of_pages_are_there() -> None:
    """Asserts that each `rezone` command of a page is one, with the options that it has.

    Without it a runbook would name an option that was renamed, at night.
    """
    pages = [page for page in PAGES if page.name != SPANS]
    found = [(page.name, words) for page in pages for words in commands(page.read_text())]
    assert len(found) > 100
    assert [each for each in found if unknown_word(each[1])] == []


def names_below(schema: dict[str, Any], path: str, found: set[str]) -> None:
    """Add the paths of all fields of a schema."""
    found.add(path)
    for name, below in schema.get("properties", {}).items():
        names_below(below, f"{path}.{name}", found)
    if isinstance(schema.get("items"), dict):
        names_below(schema["items"], path, found)


@pytest.fixture(scope="module")
def fields() -> set[str]:
    """Return the fields of all kinds from `spec` and `status` on, and the chart's settings."""
    found: set[str] = set()
    for file in (ROOT / "crds").glob("*.yaml"):
        (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        for name in ("spec", "status"):
            names_below(properties[name], name, found)
    chart = json.loads((ROOT / "charts" / "rezone" / "values.schema.json").read_text())
    names_below(chart["properties"]["settings"], "settings", found)
    return found


def test_fields_of_pages_are_there(fields: set[str]) -> None:
    """Asserts that each field of an object, and setting of the chart, that a page names exists.

    Without it people would set a field that nobody reads, or look for one that was renamed.
    """
    pattern = r"`((?:spec|status|settings)(?:\.[a-z][A-Za-z0-9]*(?:\[\])?)+)\b"
    named = {
        (page.name, field.replace("[]", ""))
        for page in PAGES
        for field in re.findall(pattern, page.read_text())
    }
    assert len(named) > 80
    assert [each for each in sorted(named) if each[1] not in fields | PODS_FIELDS] == []
