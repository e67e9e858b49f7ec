"""The pages that people act by: nothing is missing in them, and what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from resource_server import REPOSITORY

from rezone.domain.rebalance_survey import Wait
from rezone.resources.conditions import Reason

PAGES = [REPOSITORY / "docs" / f"{name}.md" for name in ("gitops", "install", "troubleshooting")]
TROUBLES = PAGES[-1].read_text()


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
