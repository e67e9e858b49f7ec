"""A directory that driver and executors reach: a path, or a URI that Arrow knows.

A file is there whole or not at all: it is written under another name and then moved. Where two
write the same file the last one counts, so they must write the same.
"""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

from pyarrow import fs

from rezone.wire.errors import UNREADABLE
from rezone.wire.typed import from_json

HIDDEN = "_rezone"
"""Where jobs keep what is theirs; Spark and others skip names that begin so."""

Note = TypeVar("Note")
NOTE_BYTES_MAX = 256 << 20


class FoundFile(NamedTuple):
    """A file, by its path below the directory; `changed` is in nanoseconds since 1970."""

    name: str
    size: int
    changed: int


class Directory:
    """The files below a path or URI. ValueError for one that Arrow does not know."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        known = uri.replace("s3a://", "s3://", 1)
        self.files, root = fs.FileSystem.from_uri(known)
        self._root = root.rstrip("/")

    def path(self, name: str) -> str:
        """Return the path of a file for `files`."""
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[Any]:
        """Give a stream whose content becomes the file when the block ends well."""
        folder = self.path(name).rpartition("/")[0]
        new = self.path(f"{HIDDEN}/new/{uuid.uuid4()}")
        self.files.create_dir(folder, recursive=True)
        self.files.create_dir(self.path(f"{HIDDEN}/new"), recursive=True)
        with self.files.open_output_stream(new) as stream:
            yield stream
        self.files.move(new, self.path(name))

    def note(self, name: str, content: bytes) -> None:
        """Write a small file."""
        with self.written(name) as stream:
            stream.write(content)

    def noted(self, name: str) -> bytes | None:
        """Return the content of a small file, None without it; ValueError when it is large."""
        info = self.files.get_file_info(self.path(name))
        if info.type is not fs.FileType.File:
            return None
        if info.size > NOTE_BYTES_MAX:
            raise ValueError(f"{self.path(name)} has {info.size} bytes: it is no note of a job")
        with self.files.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, None without it."""
        info = self.files.get_file_info(self.path(name))
        return int(info.size) if info.type is fs.FileType.File else None

    def found(self, folder: str = "") -> list[FoundFile]:
        """Return all visible files below a folder, or the one file it is, by name.

        Invisible is what lies under a name that begins with "_" or ".".
        """
        at = self.files.get_file_info(self.path(folder))
        if at.type is fs.FileType.File:
            return [FoundFile(folder, int(at.size), int(at.mtime_ns or 0))]
        selector = fs.FileSelector(self.path(folder), allow_not_found=True, recursive=True)
        skipped = len(self.path(folder)) + 1
        return sorted(
            FoundFile(info.path[len(self._root) + 1 :], int(info.size), int(info.mtime_ns or 0))
            for info in self.files.get_file_info(selector)
            if info.type is fs.FileType.File
            and not any(p.startswith(("_", ".")) for p in info.path[skipped:].split("/"))
        )

    def remove(self, folder: str) -> None:
        """Delete a folder, if it is there."""
        if self.files.get_file_info(self.path(folder)).type is fs.FileType.Directory:
            self.files.delete_dir(self.path(folder))


def note_in(content: bytes, kind: type[Note]) -> Note:
    """Return what a small file notes; ValueError when it is no such note."""
    try:
        return from_json(content, kind)
    except UNREADABLE as error:
        raise ValueError(f"no {kind.__name__} can be read: {error}") from error


def split_name(uri: str) -> tuple[str, str]:
    """Return the directory and the name of a file. Raises ValueError when there is none.

    What a URI says of its store, behind "?", is said of the directory; a path may have that sign.
    """
    place, mark, query = uri.partition("?") if "://" in uri else (uri, "", "")
    folder, slash, name = place.rpartition("/")
    if not slash or not name:
        raise ValueError(f"{uri!r} is no path of a file")
    return f"{folder or '/'}{mark}{query}", name


def files_of(uri: str, suffix: str) -> tuple[Directory, list[FoundFile]]:
    """Return the files below a directory whose names end so, or the one file that it is.

    Raises ValueError when there are none.
    """
    directory = Directory(uri)
    found = directory.found()
    if found and not found[0].name:
        folder, name = split_name(uri)
        return Directory(folder), [found[0]._replace(name=name)]
    files = [file for file in found if file.name.endswith(suffix)]
    if not files:
        raise ValueError(f"{uri} has no file whose name ends with {suffix}")
    return directory, files
