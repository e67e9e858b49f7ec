"""The writer of `mode("overwrite")`: staged rows become all rows of a zone (decision 0500, SP-05).

Tasks stage sorted runs. When all have ended well, Spark's commit names one attempt of each. The
driver reads what these have staged once, so that a damaged file, or two rows of one key, ends the
job before anything is asked for. Then it notes what the rows are, and their commit time, asks for
the overwrite, brings the rows, and returns when they are the zone's. Until the switch nothing of
the zone has changed.

A driver that comes again under the same name stages again, has the rows and the time that are
noted, and goes on; with other rows it is refused.
"""

import dataclasses
import re
import uuid
from collections.abc import Iterator
from typing import Any, Final, Self

import msgspec
import xxhash
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rezone.transfer.bulk.directory import note_in
from rezone.transfer.copying.overwriting import Overwriting, nodes_of
from rezone.transfer.sink.merged_runs import MergedRuns, StagedNewRows
from rezone.transfer.sink.staged_runs import StagedFile, stage_runs
from rezone.transfer.sink.staging import Staging
from rezone.transfer.source.options import SourceOptions
from rezone.wire.errors import ConflictError, ForbiddenError, NotReadyError, RezoneError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NOTE: Final = "note.json"


class OverwriteRefusedError(ValueError):
    """Raised when a zone cannot be overwritten so, or not now; says what to do."""


@dataclasses.dataclass
class StagedRuns(WriterCommitMessage):  # type: ignore[misc]
    """What one attempt of a task has staged."""

    file: StagedFile


class OverwriteNote(msgspec.Struct):
    """What is known of an overwrite by its name: its rows, their time, whether it is done."""

    digest: str
    rows: int
    time: int
    done: bool = False


class OverwriteWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Makes the rows of a batch job those of the zone. `named`: by a user, who may come again."""

    def __init__(self, options: SourceOptions, name: str, *, named: bool) -> None:
        self._options = options
        self._name = name
        self._named = named
        self._job = str(uuid.uuid4())

    @classmethod
    def begin(cls, options: SourceOptions) -> Self:
        """Return the writer of a job. OverwriteRefusedError while the zone cannot be overwritten.

        ValueError for wrong options. Nothing is staged or asked for yet.
        """
        if not options.staging:
            raise ValueError(
                'mode("overwrite") needs the option "stagingDirectory": a directory that driver '
                "and executors reach, as a path of a shared volume or s3://, hdfs://, gs://, "
                "abfs://; nothing of the zone changes before all rows are there"
            )
        if options.delete:
            raise ValueError('"operation" "delete" has no mode("overwrite"): use mode("append")')
        name = options.overwrite_name
        if name is not None and not NAME.fullmatch(name):
            raise ValueError(
                f'option "overwriteName" is {name!r}, not 1 to 100 letters, digits, ".", "_", "-"'
            )
        made = cls(options, name or str(uuid.uuid4()), named=name is not None)
        with options.client():  # the zone that is named
            pass
        try:
            made._driver().is_done()
        except RezoneError as error:
            raise _explained(error) from error
        return made

    def write(self, iterator: Iterator[Any]) -> StagedRuns:
        """Stage a task's rows."""
        with self._options.client() as client:
            return StagedRuns(stage_runs(self._staging(), client.codec, iterator))

    def commit(self, messages: list[StagedRuns | None]) -> None:
        """Return when the rows of the attempts that count are those of the zone.

        StagedRowsError for missing and damaged files, ValueError for two rows of one key: nothing
        is asked for. OverwriteRefusedError says what to do. When it fails, run the job again.
        """
        files = [message.file for message in messages if message is not None]
        runs = MergedRuns(self._staging(), [file for file in files if file.name])
        digest = runs.digest()
        driver, notes = self._driver(), self._notes()
        try:
            noted = self._noted(driver, digest, runs.rows)
            if not noted.done:
                driver.run(StagedNewRows(runs, noted.time))
                noted.done = True
                notes.note(NOTE, msgspec.json.encode(noted))
        except RezoneError as error:
            raise _explained(error) from error
        # With what earlier drivers of the name and attempts that do not count have left.
        self._staging(all_jobs=True).remove_all()
        if not self._named:
            notes.remove_all()

    def abort(self, messages: list[StagedRuns | None]) -> None:
        """Forget what the job has staged, not what is noted: rows of that time may be there."""
        del messages
        self._staging().remove_all()

    def _noted(self, driver: Overwriting, digest: str, rows: int) -> OverwriteNote:
        """Return the note of the overwrite, made now if it is the first of its name."""
        notes = self._notes()
        is_done = driver.is_done()
        if notes.noted(NOTE) is None:
            if is_done:
                raise OverwriteRefusedError(
                    f"the overwrite {self._name} is done, and its rows are not known here; give "
                    'another "overwriteName"'
                )
            made = OverwriteNote(digest, rows, driver.time())
            notes.note(NOTE, msgspec.json.encode(made))
        content = notes.noted(NOTE)  # of another driver, where two have come at a time
        noted = note_in(content or b"", OverwriteNote)
        if noted.digest != digest:
            raise OverwriteRefusedError(
                f"the overwrite {self._name} was begun with other rows ({noted.rows}, now {rows}): "
                'give another "overwriteName"'
            )
        if noted.done and not is_done:
            raise OverwriteRefusedError(
                f"the overwrite {self._name} was done before, and the zone was overwritten again "
                'since; give another "overwriteName"'
            )
        return noted

    def _driver(self) -> Overwriting:
        name = asked_name(self._name, self._options.staging or "")
        connect = self._options.connect
        return Overwriting(name, nodes_of(self._options.bootstrap, connect), connect=connect)

    def _staging(self, *, all_jobs: bool = False) -> Staging:
        folder = f"overwrite-{self._name}/rows"
        return Staging(self._options.staging or "", folder if all_jobs else f"{folder}/{self._job}")

    def _notes(self) -> Staging:
        return Staging(self._options.staging or "", f"overwrite-{self._name}")


def asked_name(name: str, directory: str) -> str:
    """Return the name that data nodes are told.

    It has the staging directory, too: what the rows of an overwrite are is noted there alone.
    """
    known = directory.replace("s3a://", "s3://", 1).rstrip("/")
    return f"{name}@{xxhash.xxh3_64_hexdigest(known.encode())}"


def _explained(error: RezoneError) -> OverwriteRefusedError:
    """Return an error of data nodes with what to do about it."""
    if isinstance(error, ForbiddenError):
        return OverwriteRefusedError(
            f"{error}. An overwrite fills replicas, so it needs the certificate of copy jobs: name "
            'a directory with the files of the Secret <zone>-transfer-tls by "tlsDirectory"'
        )
    if isinstance(error, ConflictError):
        what = (
            'give another "overwriteName", or none'
            if "cancelled" in str(error)
            else "nothing of the zone has changed; run the job again when that is over"
        )
        return OverwriteRefusedError(f"{error}. To overwrite it: {what}")
    if isinstance(error, NotReadyError):
        return OverwriteRefusedError(
            f'{error}. Run the job again, with the same "overwriteName" if it has one: it goes on'
        )
    return OverwriteRefusedError(str(error))
