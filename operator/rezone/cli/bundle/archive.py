"""A compressed archive that grows file by file up to a limit, and never takes over another file."""

import io
import os
import tarfile
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class Archive:
    """A tar.gz that only its owner may read; what is in it when it is left by an error goes.

    `bytes_max` bounds the files in it, uncompressed; their names begin with `root`.
    """

    def __init__(self, path: Path, *, root: str, bytes_max: int, now: datetime) -> None:
        self._path = path
        self._root = root
        self._left = bytes_max
        self._now = int(now.timestamp())
        self._file: IO[bytes] | None = None
        self._tar: tarfile.TarFile | None = None
        self.sizes: dict[str, int] = {}
        """The files in it, and their bytes."""

    def __enter__(self) -> Self:
        """Make the file. Raises OSError, also when there is one of the name."""
        self._file = os.fdopen(
            os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        )
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete the file, or take it away."""
        if self._tar is not None:
            self._tar.close()
        if self._file is not None:
            self._file.close()
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def has_room(self, size: int) -> bool:
        """Return whether a file of this size would fit."""
        return size <= self._left

    def add(self, name: str, content: bytes) -> bool:
        """Add a file; return False when it does not fit any more."""
        if self._tar is None:
            raise RuntimeError("the archive is not open")
        if not self.has_room(len(content)):
            return False
        entry = tarfile.TarInfo(f"{self._root}/{name}")
        entry.size, entry.mode, entry.mtime = len(content), 0o600, self._now
        self._tar.addfile(entry, io.BytesIO(content))
        self._left -= len(content)
        self.sizes[name] = len(content)
        return True
