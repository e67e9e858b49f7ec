"""The pages that are made from code or data, by their path under docs/; none of them is committed.

`make docs` builds the site with them (hack/docs_site.py), and hack/links.py checks links to them.
"""

import re
from pathlib import Path

import evidence
import glossary
import mutations
import protocols_page
import settings_page
import yaml

from rezone.domain.machines import machine, migration_table, rebalance_table, resharding_table
from rezone.resources.reference import reference_page

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "decisions"
DECISIONS_HEAD = """# Decisions

What was chosen, and why; the newest first.

| number | subject | date | status |
| --- | --- | --- | --- |
"""
RUNBOOKS = ROOT / "docs" / "operate" / "runbooks"
RUNBOOKS_HEAD = """# Runbooks

What each alert of the chart means, what to look at, and what to do.

| alert | severity | what it means |
| --- | --- | --- |
"""
STATE_PAGES = {
    "migration-states.md": (migration_table.TABLE, migration_table.INTRODUCTION),
    "rebalance-states.md": (rebalance_table.TABLE, rebalance_table.INTRODUCTION),
    "re-sharding-states.md": (resharding_table.TABLE, resharding_table.INTRODUCTION),
}


def generated() -> dict[str, str]:
    """Return the text of each generated page."""
    words = yaml.safe_load(glossary.SOURCE.read_text())
    states = {
        f"operate/moves/{name}": machine.page(table, introduction)
        for name, (table, introduction) in STATE_PAGES.items()
    }
    return states | {
        "contribute/evidence.md": evidence.generated(),
        "contribute/mutations.md": mutations.page(*mutations.load()),
        "contribute/protocols.md": protocols_page.page(),
        "decisions/index.md": decisions_page(DECISIONS),
        "operate/runbooks/index.md": runbooks_page(RUNBOOKS),
        "operate/settings.md": settings_page.page(),
        "use/glossary.md": glossary.page(words),
        "use/reference.md": reference_page(),
    }


def decisions_page(folder: Path) -> str:
    """Return the list of a folder's decisions.

    SystemExit names a file that has no title with its number, or no date below the title.
    """
    rows = []
    for path in sorted(folder.glob("[0-9]*.md"), reverse=True):
        number = path.name[:4]
        found = re.match(
            rf"# 0*{int(number)}:? (?P<title>.+)\n+(?P<status>[^\n]+)", path.read_text()
        )
        date = re.search(r"\d{4}-\d\d-\d\d", found["status"]) if found else None
        if found is None or date is None:
            raise SystemExit(f"{path}: wants `# {number} Title`, then `YYYY-MM-DD, status.`")
        over = re.search(r"superseded (?:in part )?by", found["status"], re.IGNORECASE)
        status = over[0].lower().removesuffix(" by") if over else "accepted"
        rows.append(f"| {number} | [{found['title']}]({path.name}) | {date[0]} | {status} |\n")
    return DECISIONS_HEAD + "".join(rows)


def runbooks_page(folder: Path) -> str:
    """Return the list of a folder's runbooks.

    SystemExit names a file that does not begin with the alert's severity and meaning.
    """
    rows = []
    for path in sorted(folder.glob("[A-Z]*.md")):
        found = re.match(
            rf"# {path.stem}\n\n## What it means\n\n(\w+)\. (.+?)(?:\n\n|\n?\Z)",
            path.read_text(),
            re.DOTALL,
        )
        if found is None:
            raise SystemExit(f"{path}: wants `# Alert`, `## What it means`, `Severity. Meaning.`")
        meaning = " ".join(found[2].split()).replace("|", "\\|")
        rows.append(f"| [{path.stem}]({path.name}) | {found[1]} | {meaning} |\n")
    return RUNBOOKS_HEAD + "".join(rows)
