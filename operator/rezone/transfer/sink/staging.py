"""Rows that tasks have staged until their job is sure of them: files under one directory.

The directory is one that the driver and all executors reach: a path of a shared volume, or a URI
that Arrow knows (`s3://`, `hdfs://`, `gs://`, `abfs://`). Each attempt of a task has a file of its
own, whose name goes to the driver with its result. So what a failed, repeated or speculative
attempt has written is never looked at.
"""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs


class Staging:
    """The files of one job, in a folder of a staging directory; ValueError for a bad URI."""

    def __init__(self, directory: str, job: str) -> None:
        uri = directory.replace("s3a://", "s3://", 1)
        self._files, root = fs.FileSystem.from_uri(uri)
        self._folder = f"{root.rstrip('/')}/{job}"

    def write(self, batches: Iterator[Any]) -> tuple[str, int]:
        """Write batches to a new file; return its name and how many rows there are.

        Without rows there is no file, and the name is empty.
        """
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return "", 0
        name, rows = f"{uuid.uuid4()}.arrow", first.num_rows
        self._files.create_dir(self._folder, recursive=True)
        with (
            self._files.open_output_stream(self._path(name)) as file,
            pa.ipc.new_stream(file, first.schema) as stream,
        ):
            stream.write_batch(first)
            for batch in batches:
                stream.write_batch(batch)
                rows += batch.num_rows
        return name, rows

    def read(self, name: str) -> Iterator[Any]:
        """Yield the batches of a file."""
        with (
            self._files.open_input_stream(self._path(name)) as file,
            pa.ipc.open_stream(file) as stream,
        ):
            for batch in stream:
                batch.validate(full=True)
                yield batch

    def write_bytes(self, content: Iterator[bytes]) -> str:
        """Write a new file of bytes; return its name, which is empty where there are none."""
        first = next(content, None)
        if first is None:
            return ""
        name = f"{uuid.uuid4()}.run"
        self._files.create_dir(self._folder, recursive=True)
        with self._files.open_output_stream(self._path(name)) as file:
            file.write(first)
            for data in content:
                file.write(data)
        return name

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """Give a file to read anywhere in, None when it is not there."""
        if self._files.get_file_info(self._path(name)).type is not fs.FileType.File:
            yield None
            return
        with self._files.open_input_file(self._path(name)) as file:
            yield file

    def note(self, name: str, content: bytes) -> None:
        """Write a small file whole: who dies in it leaves the one before."""
        self._files.create_dir(self._folder, recursive=True)
        # Object stores have a new object whole or not at all, and some of them move none.
        moves = isinstance(self._files, fs.LocalFileSystem | fs.HadoopFileSystem)
        written = self._path(f"{uuid.uuid4()}.part" if moves else name)
        with self._files.open_output_stream(written) as file:
            file.write(content)
        if moves:
            self._files.move(written, self._path(name))

    def noted(self, name: str) -> bytes | None:
        """Return the content of a small file, None when it is not there."""
        if self._files.get_file_info(self._path(name)).type is not fs.FileType.File:
            return None
        with self._files.open_input_stream(self._path(name)) as file:
            return bytes(file.read())

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        if self._files.get_file_info(self._path(name)).type is fs.FileType.File:
            self._files.delete_file(self._path(name))

    def remove_all(self) -> None:
        """Delete the job's folder, if it is there."""
        if self._files.get_file_info(self._folder).type is fs.FileType.Directory:
            self._files.delete_dir(self._folder)

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
