"""Builds the documentation site from docs/ and the generated pages, without a network.

    python hack/docs_site.py

build/docs gets all pages, build/site the site. It fails on a page that the navigation of
zensical.toml lacks, on a link or anchor that leads nowhere (Zensical's strict mode), and on a
script, style, font or picture of another host in the output.
"""

import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIGURATION = "zensical.toml"
SECONDS_MAX = 300
STYLE = "site.css"
TAKEN_IN = {"CONTRIBUTING.md": "contribute/contributing.md", "CHANGELOG.md": "start/changelog.md"}
"""Pages of the repository's root that are pages of the site, too."""

_LINK = re.compile(
    r"^(?:```+).*?^```+[ \t]*$|`[^`\n]+`|\[([^\[\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)
"""A block or span of code, without groups, or a link."""
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|modulepreload|icon))"
    r"[^>]*\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|url\([\"']?((?:https?:)?//[^\"')]+)|@import\s+[\"']((?:https?:)?//[^\"']+)"
)


def collected(generated: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each page of the site, and of its style sheet, by its path."""
    written = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")}
    if doubled := written.keys() & generated.keys():
        raise SystemExit(f"generated pages stand in docs/, too: {', '.join(sorted(doubled))}")
    names = {f"docs/{name}": name for name in written | generated} | TAKEN_IN
    taken = {name: (ROOT / source).read_text() for source, name in TAKEN_IN.items()}
    places = {name: source for source, name in names.items()}
    every = written | generated | taken
    linked = {name: with_links(text, places[name], names) for name, text in every.items()}
    return linked | {STYLE: (DOCS / STYLE).read_text()}


def with_links(text: str, source: str, names: Mapping[str, str]) -> str:
    """Return a page whose links lead to pages of the site.

    `source` is its path in the repository, `names` the path in the site of each file that is a
    page. The text of a link to any other file stays, without the link.
    """

    def moved(match: re.Match[str]) -> str:
        shown, link, anchor = match[1], match[2], match[3] or ""
        if link is None or re.match(r"[a-z]+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        target = {"README.md": "docs/index.md"}.get(target, target)
        page = names.get(target) or names.get(f"{target}/index.md")
        if page is None:
            return shown
        return f"[{shown}]({posixpath.relpath(page, posixpath.dirname(names[source]))}{anchor})"

    return _LINK.sub(moved, text)


def unlisted(pages: Mapping[str, str], navigation: Any) -> list[str]:
    """Return the pages that neither the navigation has nor the index of their folder, if listed."""
    listed = {STYLE, *_listed(navigation)}
    for index in [name for name in listed if name.endswith("index.md")]:
        inside = re.findall(r"\]\(([^)#]+)", pages.get(index, ""))
        listed |= {posixpath.normpath(posixpath.join(posixpath.dirname(index), i)) for i in inside}
    return sorted(pages.keys() - listed)


def _listed(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry:
        if not isinstance(entry, str):
            yield from _listed(inner)


def loaded_from_elsewhere(text: str) -> list[str]:
    """Return the addresses on other hosts that a page or style sheet loads without a click."""
    return ["".join(found) for found in _LOADED.findall(text)]


def build(root: Path, pages: Mapping[str, str]) -> list[str]:
    """Write a folder's build/docs, build build/site from it, and return what is wrong.

    The folder has zensical.toml. Zensical itself says on stderr what it has found.
    """
    folder, site = root / "build" / "docs", root / "build" / "site"
    for old in (folder, site):
        shutil.rmtree(old, ignore_errors=True)
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    configuration = root / CONFIGURATION
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    command += ["--config-file", str(configuration)]
    navigation = tomllib.loads(configuration.read_text())["project"]["nav"]
    found = [
        f"{CONFIGURATION}: the navigation lacks {name}" for name in unlisted(pages, navigation)
    ]
    if code := subprocess.run(command, cwd=root, check=False, timeout=SECONDS_MAX).returncode:
        found.append(f"zensical failed with {code}")
    for path in sorted(p for p in site.rglob("*") if p.suffix in {".html", ".css"}):
        found += [
            f"{path.relative_to(root)} loads {address}"
            for address in loaded_from_elsewhere(path.read_text(encoding="utf-8"))
        ]
    return found


def main() -> int:
    """Build the site; 1 when something is wrong with it."""
    import pages  # noqa: PLC0415 - it reads the whole product; tests of this module do without

    found = build(ROOT, collected(pages.generated()))
    sys.stderr.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
