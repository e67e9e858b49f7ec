"""Writes everything made from the models, the chart and the health scripts, or checks it.

    python -m rezone.resources.generate --helm "$(command -v helm)"
    python -m rezone.resources.generate --check

Helm renders manifests/ from the chart. Without one (neither --helm nor on PATH) that part is left
alone, and this says so.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rezone.resources.packaging import definition_files, gitops_files, manifest_files

# In these folders every file is generated; what nobody generates any more is removed.
_DEFINITION_FOLDERS = ("crds", "charts/rezone/templates/crds")
_MANIFEST_FOLDERS = ("manifests/base", "manifests/zone-namespace")


def plain_files() -> dict[str, str]:
    """Return what is made from the models alone, as text by path."""
    return definition_files()


def drift(root: Path, files: Mapping[str, str], folders: Sequence[str]) -> list[str]:
    """Return a line for each file that is missing, differs, or is generated no more."""
    found = []
    for path, text in sorted(files.items()):
        target = root / path
        if not target.is_file():
            found.append(f"{path}: missing")
        elif target.read_text() != text:
            found.append(f"{path}: differs")
    return found + [f"{path}: generated no more" for path in _left_over(root, files, folders)]


def write(root: Path, files: Mapping[str, str], folders: Sequence[str]) -> list[str]:
    """Bring the files up to date and return a line for each that was not."""
    found = drift(root, files, folders)
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_text() != text:
            target.write_text(text)
    for path in _left_over(root, files, folders):
        (root / path).unlink()
    return found


def _left_over(root: Path, files: Mapping[str, str], folders: Sequence[str]) -> list[str]:
    present = {
        path.relative_to(root).as_posix()
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    return sorted(present - files.keys())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 when --check finds drift."""
    parser = argparse.ArgumentParser(prog="rezone.resources.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on drift")
    parser.add_argument("--helm", default=shutil.which("helm"), help="the helm program")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository's root")
    chosen = parser.parse_args(arguments)
    say = sys.stderr.write
    root: Path = chosen.root
    helm: str | None = chosen.helm or None
    act = drift if chosen.check else write
    found = act(root, plain_files(), _DEFINITION_FOLDERS) + act(root, gitops_files(root), ())
    if helm is None:
        say("no helm: manifests/ is left alone\n")
    else:
        # After the definitions: Helm reads the chart from the disk, with the definitions in it.
        found += act(root, manifest_files(root, helm), _MANIFEST_FOLDERS)
    say("".join(f"{line}\n" for line in found))
    if chosen.check and found:
        say("run `make generate` and commit what it changes\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
