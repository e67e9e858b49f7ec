"""Checks that links, anchors and names of files lead somewhere, without a network.

    python hack/links.py

Checked are links in all Markdown files of the repository and in the generated pages
(hack/pages.py), pages that other files name as `docs/...`, and in Markdown files that are not
history (decisions and the changelog) each name of a file that begins with a folder of this
repository. Links to other hosts are left alone. Anchors are those that Git hosts make;
hack/docs_site.py checks those of the site.
"""

import posixpath
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
HISTORY = ("CHANGELOG.md", "docs/decisions/")
LEFT_OUT = frozenset({"tests/test_docs.py", "uv.lock"})  # names pages that are not there
READ = frozenset(
    {"", ".json", ".lua", ".md", ".py", ".sh", ".toml", ".tpl", ".txt", ".yaml", ".yml"}
)
_FENCE = re.compile(r"^(```+).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_PAGE = re.compile(r"(?<![\w./-])docs/[\w/-]+\.(?:md|yaml)\b")
_FILE = re.compile(
    r"(?<![\w./-])(?:\.ci|benchmarks|charts|crds|docs|e2e|gitops|hack|manifests|operator|tests)"
    r"/[\w./-]+\.(?:json|lua|md|py|sh|toml|yaml)\b"
)


class Tree:
    """The texts that are checked, and the names that links may lead to."""

    def __init__(self, texts: Mapping[str, str], others: frozenset[str] = frozenset()) -> None:
        self.texts = texts
        files = texts.keys() | others
        folders = {part for name in files for part in _parents(name)}
        self.names = files | folders
        self._anchors: dict[str, frozenset[str]] = {}

    def anchors(self, name: str) -> frozenset[str]:
        """Return the anchors of a Markdown file."""
        if name not in self._anchors:
            self._anchors[name] = frozenset(anchors(self.texts[name]))
        return self._anchors[name]


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def anchors(text: str) -> Iterator[str]:
    """Yield the anchor of each heading; of equal ones the second has `-1` at its end."""
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


def problems(tree: Tree) -> Iterator[str]:
    """Yield a line for each link or name of a file that leads nowhere."""
    for name, text in sorted(tree.texts.items()):
        history = name.startswith(HISTORY)
        if name.endswith(".md"):
            yield from _broken_links(tree, name, text)
        pattern = _FILE if name.endswith(".md") and not history else _PAGE
        for match in pattern.finditer(text):
            if match.group() not in tree.names:
                yield f"{_place(name, text, match)}: there is no file {match.group()}"


def _broken_links(tree: Tree, name: str, text: str) -> Iterator[str]:
    # Code keeps its length, so that places stay those of the file.
    plain = _CODE.sub(_blank, _FENCE.sub(_blank, text))
    for match in _LINK.finditer(plain):
        if why := _why_broken(tree, name, match[1]):
            yield f"{_place(name, text, match)}: {match[1]}: {why}"


def _why_broken(tree: Tree, name: str, link: str) -> str:
    if re.match(r"[a-z]+:", link):
        return ""
    path, _, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    if target not in tree.names:
        return "there is no such file"
    if anchor and (not target.endswith(".md") or anchor not in tree.anchors(target)):
        return f"{target} has no such heading"
    return ""


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _place(name: str, text: str, match: re.Match[str]) -> str:
    return f"{name}:{text.count(chr(10), 0, match.start()) + 1}"


def repository(pages: Mapping[str, str]) -> Tree:
    """Return the tree of this repository, with generated pages by their path under docs/."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    read = {name for name in files if Path(name).suffix in READ and name not in LEFT_OUT}
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in read}
    made = {f"docs/{name}": text for name, text in pages.items()}
    return Tree(texts | made, frozenset(files))


def main() -> int:
    """Say what leads nowhere; 1 when there is any."""
    import pages  # noqa: PLC0415 - it reads the whole product; tests of this module do without

    found = list(problems(repository(pages.generated())))
    sys.stderr.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
