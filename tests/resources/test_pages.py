"""The pages that people act by: nothing is missing in them, and what they name is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml
from resource_server import NAMESPACE, REPOSITORY, Server

from rezone.cli.main import main
from rezone.domain.rebalance.survey import Wait
from rezone.resources.conditions import Reason
from rezone.resources.crd import value_comments
from rezone.resources.reference import reference_page

README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
FIRST_ZONE = DOCS / "start" / "first-zone.md"
FIRST = (README, DOCS / "start" / "index.md", FIRST_ZONE)
NAMES = ("gitops", "sizing", "troubleshooting")
PAGES = [
    *(README, FIRST_ZONE, DOCS / "start" / "install.md", DOCS / "start" / "status.md"),
    DOCS / "use" / "types-and-limits.md",
    *(DOCS / "operate" / f"{name}.md" for name in NAMES),
]
TROUBLES = PAGES[-1].read_text()
COMPLETE = [README, FIRST_ZONE, DOCS / "start" / "install.md", DOCS / "operate" / "gitops.md"]
"""Pages whose YAML is of whole objects."""


def table(title: str) -> list[list[str]]:
    """Return the rows of a page's table, by cells."""
    part = TROUBLES.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_every_reason_has_a_line_that_says_what_to_do() -> None:
    """A person who looks a reason up at night would find nothing."""
    rows = table("Reasons")
    assert [row[0] for row in rows] == [f"`{reason}`" for reason in Reason]
    for _, kinds, meaning, advice in rows:
        assert set(kinds.split(", ")) <= {"zone", "task", "migration"}
        assert meaning.endswith(".")
        assert advice.endswith(".")


def test_every_wait_has_a_line_that_says_what_to_do() -> None:
    """A task that waits for a word that no page knows waits for ever."""
    rows = table("What a task waits for")
    assert [row[0] for row in rows] == [f"`{wait}`" for wait in Wait]
    assert all(len(row) == 3 and row[2].endswith(".") for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_name_what_exists(page: Path) -> None:
    """A path that leads nowhere ends the reader's patience; hack/links.py checks the links."""
    text = page.read_text()
    paths = re.findall(r"\b((?:charts|manifests|gitops|crds)/[\w./-]*[\w/])", text)
    known = [path for path in paths if not path.endswith("/...")]
    assert [path for path in known if not (REPOSITORY / path).exists()] == []
    if page in COMPLETE:
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
            assert all(document["kind"] for document in yaml.safe_load_all(block))


def test_values_that_the_page_names_exist() -> None:
    """People would set a value that the chart refuses."""
    values = yaml.safe_load((REPOSITORY / "charts/rezone/values.yaml").read_text())
    page = (REPOSITORY / "docs/start/install.md").read_text()
    text = page.partition("## Helm")[2].partition("## kustomize")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for name in re.findall(r"`([\w.]+)`", " ".join(row.split(" | ")[0] for row in rows)):
        found = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def blocks(language: str) -> list[str]:
    """Return the first pages' blocks of code in a language; "" is a shell's."""
    text = "\n".join(page.read_text() for page in FIRST)
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


@pytest.mark.apiserver
def test_the_zones_of_the_first_pages_are_taken(server: Server) -> None:
    """Asserts that the API server takes the objects of the README and of the first zone's page.

    Without it the first thing that a new user applies may be refused.
    """
    objects = [one for block in blocks("yaml") for one in yaml.safe_load_all(block)]
    assert [one["kind"] for one in objects] == ["DistributionZone", "DistributionZone"]
    for number, one in enumerate(objects):
        one["metadata"] |= {"namespace": NAMESPACE, "name": f"accounts-{number}"}
        assert server.try_create(one) == ""


def commands_of_the_first_pages() -> list[list[str]]:
    """Return the words of each call of `rezone` and `make` there, without comments."""
    found = re.findall(r"(?:^|\$\()((?:rezone|make) [^)#\n]*)", "".join(blocks("")), re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_commands_of_the_first_pages_are_commands() -> None:
    """Asserts that command line and Makefile know what these pages call, options included.

    Without it a renamed option or target stays in the page that people copy from.
    """
    made = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    checked = set()
    for program, name, *words in commands_of_the_first_pages():
        if program == "make":
            assert name in made
            continue
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command is not None, name
        command.make_context(name, words)
        checked.add(name)
    assert {"local", "certificate", "map", "migrate", "progress"} <= checked


def test_reasons_name_fields_that_exist() -> None:
    """Asserts that what the reference says of a reason is of the resources as they are.

    Without it people look for a field, or an annotation, that nobody reads.
    """
    known = set(re.findall(r"`(spec\.[\w.]+)`", reference_page()))
    told = value_comments(Reason)
    rows = {name: " ".join(rest) for name, *rest in table("Reasons")}
    for reason, text in told.items():
        if "annotation" in text:
            assert "`rezone.dev/" in rows[f"`{Reason[reason]}`"], f"{reason}: which annotation?"
        assert set(re.findall(r"spec\.[\w.]*\w", text)) <= known, reason
