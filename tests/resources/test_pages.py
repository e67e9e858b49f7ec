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

README = REPOSITORY / "README.md"
DOCS = ("gitops", "install", "sizing", "status", "types-and-limits", "troubleshooting")
PAGES = [README, *(REPOSITORY / "docs" / f"{name}.md" for name in DOCS)]
TROUBLES = PAGES[-1].read_text()
COMPLETE = [README, REPOSITORY / "docs" / "gitops.md", REPOSITORY / "docs" / "install.md"]
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
    """A link or path that leads nowhere ends the reader's patience."""
    text = page.read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    paths = re.findall(r"\b((?:charts|manifests|gitops|crds)/[\w./-]*[\w/])", text)
    known = [path for path in paths if not path.endswith("/...")]
    assert [path for path in known if not (REPOSITORY / path).exists()] == []
    if page in COMPLETE:
        for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
            assert all(document["kind"] for document in yaml.safe_load_all(block))


def test_values_that_the_page_names_exist() -> None:
    """People would set a value that the chart refuses."""
    values = yaml.safe_load((REPOSITORY / "charts/rezone/values.yaml").read_text())
    page = (REPOSITORY / "docs/install.md").read_text()
    text = page.partition("## Helm")[2].partition("## kustomize")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for name in re.findall(r"`([\w.]+)`", " ".join(row.split(" | ")[0] for row in rows)):
        found = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]


def blocks(language: str) -> list[str]:
    """Return the README's blocks of code in a language; "" is a shell's."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == language]


@pytest.mark.apiserver
def test_the_zone_of_the_readme_is_taken(server: Server) -> None:
    """Asserts that the API server takes the README's objects.

    Without it the first thing that a new user applies may be refused.
    """
    objects = [one for block in blocks("yaml") for one in yaml.safe_load_all(block)]
    assert [one["kind"] for one in objects] == ["DistributionZone"]
    for one in objects:
        one["metadata"]["namespace"] = NAMESPACE
        assert server.try_create(one) == ""


def commands_of_the_readme() -> list[list[str]]:
    """Return the words of each call of `rezone` and `make` in the README, without comments."""
    found = re.findall(r"(?:^|\$\()((?:rezone|make) [^)#\n]*)", "".join(blocks("")), re.MULTILINE)
    return [shlex.split(line) for line in found]


def test_commands_of_the_readme_are_commands() -> None:
    """Asserts that the command line and the Makefile know what the README calls, options included.

    Without it a renamed option or target stays in the page that people copy from.
    """
    made = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    checked = set()
    for program, name, *words in commands_of_the_readme():
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
    known = set(re.findall(r"`(spec\.[\w.]+)`", (REPOSITORY / "docs" / "reference.md").read_text()))
    told = value_comments(Reason)
    rows = {name: " ".join(rest) for name, *rest in table("Reasons")}
    for reason, text in told.items():
        if "annotation" in text:
            assert "`rezone.dev/" in rows[f"`{Reason[reason]}`"], f"{reason}: which annotation?"
        assert set(re.findall(r"spec\.[\w.]*\w", text)) <= known, reason
