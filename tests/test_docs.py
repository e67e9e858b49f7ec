"""The documentation's checks fail on what is broken, and the pages made from code are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGE = "# Moves\n\n## How fast?\n\n## A `code` heading\n\n## How fast?\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a](moves.md)", ""),
        ("[a](moves.md#how-fast)", ""),
        ("[a](moves.md#how-fast-1)", ""),
        ("[a](moves.md#a-code-heading)", ""),
        ("[a](../hack)", ""),
        ("[a](https://example.com/none)", ""),
        ("`[a](none.md)`\n```\n[a](none.md)\n```", ""),
        ("see hack/run.sh", ""),
        ("[a](none.md)", "docs/a.md:1: none.md: there is no such file"),
        ("\n[a](moves.md#slow)", "docs/a.md:2: moves.md#slow: docs/moves.md has no such heading"),
        ("[a](#none)", "docs/a.md:1: #none: docs/a.md has no such heading"),
        ("[a](../../out.md)", "docs/a.md:1: ../../out.md: there is no such file"),
        ("see hack/gone.py", "docs/a.md:1: there is no file hack/gone.py"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(hack: Any, text: str, told: str) -> None:
    """Asserts that broken links, anchors and names of files are found, and only those.

    Without it a page that moves leaves readers of all others at a dead end.
    """
    links = hack("links")
    tree = links.Tree({"docs/a.md": text, "docs/moves.md": PAGE}, frozenset({"hack/run.sh"}))
    assert list(links.problems(tree)) == ([told] if told else [])


def test_code_that_names_a_page_is_checked(hack: Any) -> None:
    """Asserts that messages and docstrings name pages that exist.

    Without it the operator sends people to a page that was moved.
    """
    links = hack("links")
    texts = {"a.py": '"""See docs/b.md.\n\nAnd docs/c.md."""', "docs/b.md": "", "CHANGELOG.md": ""}
    assert list(links.problems(links.Tree(texts))) == ["a.py:3: there is no file docs/c.md"]


SITE = """[project]
site_name = "x"
docs_dir = "build/docs"
site_dir = "build/site"
nav = [{ "x" = "index.md" }]
[project.theme]
font = FONT
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pages", "font", "told"),
    [
        ({"index.md": PAGE + "[a](#how-fast)"}, "false", []),
        ({"index.md": "# x\n\n[a](#none)"}, "false", ["zensical failed with 1"]),
        ({"index.md": "# x\n\n[a](none.md)"}, "false", ["zensical failed with 1"]),
        (
            {"index.md": "# x", "b.md": "# b"},
            "false",
            ["zensical.toml: the navigation lacks b.md"],
        ),
        ({"index.md": "# x\n\n[b](b.md)", "b.md": "# b"}, "false", []),
        ({"index.md": "# x"}, "{ text = 'Inter' }", ["build/site/404.html loads https://fonts."]),
    ],
    ids=["fine", "anchor", "link", "unlisted", "in the index", "font"],
)
def test_a_site_with_something_wrong_is_told(
    hack: Any, tmp_path: Path, pages: dict[str, str], font: str, told: list[str]
) -> None:
    """Asserts that the build says what is wrong with a site, by the real generator.

    Without it `make check` passes over a page that nobody reaches, or readers load fonts from
    another host.
    """
    (tmp_path / "zensical.toml").write_text(SITE.replace("FONT", font))
    found = hack("docs_site").build(tmp_path, pages)
    assert bool(found) == bool(told)
    assert all(any(line.startswith(each) for line in found) for each in told)
    assert (tmp_path / "build" / "site" / "index.html").exists() or "zensical failed" in found[0]


@pytest.mark.parametrize(
    ("link", "moved"),
    [
        ("[a](../use/b.md#c)", "[a](../use/b.md#c)"),
        ("[a](../../CHANGELOG.md)", "[a](../start/changelog.md)"),
        ("[a](../../README.md)", "[a](../index.md)"),
        ("[a](../decisions/)", "[a](../decisions/index.md)"),
        ("[a](../../tests/test_a.py)", "a"),
        ("[a](https://example.com)", "[a](https://example.com)"),
        ("`[a](b)` and\n```\n[a](b)\n```\n[a](b)", "`[a](b)` and\n```\n[a](b)\n```\na"),
    ],
)
def test_links_lead_to_pages_of_the_site(hack: Any, link: str, moved: str) -> None:
    """Asserts where links lead after pages of the root are taken in, and files are left out.

    Without it the site has links that only the repository can follow.
    """
    names = {"docs/a/x.md": "a/x.md", "docs/use/b.md": "use/b.md", "docs/index.md": "index.md"}
    names |= {"CHANGELOG.md": "start/changelog.md", "docs/decisions/index.md": "decisions/index.md"}
    assert hack("docs_site").with_links(link, "docs/a/x.md", names) == moved


def test_every_setting_has_its_meaning(hack: Any) -> None:
    """Asserts that the page has all settings of both processes, and refuses what does not fit.

    Without it a new setting has no line that people find, or one that is gone keeps its line.
    """
    settings_page = hack("settings_page")
    page = settings_page.page()
    assert "| `REZONE_LEASE_DURATION_SECONDS` | 8 |" in page
    assert "| `REZONE_NODE_BLOCK_CACHE_BYTES` | 67108864 (64 MiB) |" in page
    for meanings in ({}, {"a": "x", "b": "y"}):
        with pytest.raises(SystemExit, match="differ"):
            settings_page.rows({"a": 1}, meanings, {"a": "A"})


def test_decisions_are_listed(hack: Any, tmp_path: Path) -> None:
    """Asserts number, title, date and status of the index, and that a page without them is told.

    Without it a decision cannot be found by its subject.
    """
    pages = hack("pages")
    one = tmp_path / "0007-one.md"
    one.write_text("# 0007 One\n\n2026-01-02, superseded by [0008](0008-two.md).\n")
    text = pages.decisions_page(tmp_path)
    assert "| 0007 | [One](0007-one.md) | 2026-01-02 | superseded |\n" in text
    one.write_text("# 0008 One\n\n2026-01-02, accepted.\n")
    with pytest.raises(SystemExit, match="0007-one"):
        pages.decisions_page(tmp_path)


def test_runbooks_are_listed(hack: Any, tmp_path: Path) -> None:
    """Asserts that the list of runbooks says what each is about, and tells one that does not.

    Without it somebody with an alert has only the file's name to go by.
    """
    pages = hack("pages")
    one = tmp_path / "RezoneOne.md"
    one.write_text("# RezoneOne\n\n## What it means\n\nCritical. It is\nlate. Rows are safe.\n")
    text = pages.runbooks_page(tmp_path)
    assert "| [RezoneOne](RezoneOne.md) | Critical | It is late. Rows are safe. |\n" in text
    one.write_text("# RezoneOne\n")
    with pytest.raises(SystemExit, match="RezoneOne"):
        pages.runbooks_page(tmp_path)


def test_the_roadmap_names_what_is_open() -> None:
    """Asserts that it has each group of promises with an open one, in brackets, and no other.

    Without it people wait for what is done long since, and nobody plans what is missing.
    """
    groups = yaml.safe_load((ROOT / "docs" / "promises.yaml").read_text())
    unkept = {
        name
        for name, group in groups.items()
        if any(each["state"] == "open" for each in group["promises"].values())
    }
    named = re.findall(r"\(([A-Z, ]+)\)", (ROOT / "ROADMAP.md").read_text())
    assert {name for each in named for name in each.split(", ")} == unkept


def test_the_threat_model_names_tests_that_are_there() -> None:
    """Asserts that each file and function that a threat's row names exists.

    Without it a threat keeps its proof on paper after the test was renamed or removed.
    """
    page = (ROOT / "docs" / "operate" / "threat-model.md").read_text()
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    files |= {path.name: path for path in (ROOT / "e2e").rglob("test_*.py")}
    named = re.findall(r"`(?:[a-z0-9_/]*/)?(test_[a-z0-9_]+\.py)?(?:::(test_[a-z0-9_]+))?`", page)
    last = ""
    functions = 0
    for file, function in named:
        last = file or last
        assert not last or last in files, last
        if function:
            functions += 1
            assert f"def {function}(" in files[last].read_text(), f"{last}::{function}"
    assert functions > 20
