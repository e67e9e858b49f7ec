"""Programs and files of others, out of Go modules whose versions are pinned here.

Each directory with a go.mod is one set of versions. A program is built once into a directory that
is named by that set, so that another version never finds what an earlier one has left.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from e2e.kind.command import run, say
from e2e.kind.places import Places
from rezone.local.gobuild import GoProgram, build
from rezone.local.tools import find_go

STRIPPED = "-s -w"


@dataclass(frozen=True)
class GoModule:
    """A directory with a go.mod, a go.sum and whatever sources of our own are needed."""

    directory: Path

    @functools.cached_property
    def name(self) -> str:
        """What names the module's text: its versions and our own sources in it."""
        digest = hashlib.sha256()
        for path in sorted(self.directory.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{self.directory.name}-{digest.hexdigest()[:12]}"

    def program(
        self, name: str, package: str, places: Places, linker_flags: str = STRIPPED
    ) -> Path:
        """Return the path of a program, built now if it is not there.

        Raises MissingToolError without a usable Go, LocalError if the build fails.
        """
        program = GoProgram(
            package=package,
            module=self.directory,
            linker_flags=linker_flags,
            target=places.programs / self.name / name,
        )
        return program.built() or build(program, find_go(os.environ), os.environ, say)

    def sources_of(self, required: str) -> Path:
        """Return the directory with the files of a module that this one requires.

        Raises MissingToolError without a usable Go, CommandError if it cannot be downloaded.
        """
        return Path(self._download(required)["Dir"])

    def version_of(self, required: str) -> str:
        """Return the version of a module that this one requires; raises as `sources_of`."""
        return self._download(required)["Version"]

    def _download(self, required: str) -> dict[str, str]:
        answer = run(
            [find_go(os.environ), "mod", "download", "-json", required],
            cwd=self.directory,
            env={**os.environ, "GOFLAGS": "-mod=readonly"},
        )
        found: dict[str, str] = json.loads(answer)
        return found
