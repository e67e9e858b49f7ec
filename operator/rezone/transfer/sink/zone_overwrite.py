"""Staged rows become all rows of a zone (decision 0500, SP-05).

Tasks stage sorted runs, and somebody says which attempt of each counts. The driver reads what these
have staged once, so that a damaged file, or two rows of one key, ends the job before anything is
asked for. Then it notes what the rows are, and their commit time, asks for the overwrite, brings
the rows, and returns when they are the zone's. Until the switch nothing of the zone has changed.

A driver that comes again under the same name stages again, has the rows and the time that are
noted, and goes on; with other rows it is refused.
"""

import re
import uuid
from collections.abc import Sequence
from typing import Final

import msgspec
import xxhash

from rezone.transfer.bulk.directory import note_in
from rezone.transfer.copying.overwriting import Overwriting, nodes_of
from rezone.transfer.sink.merged_runs import MergedRuns, StagedNewRows
from rezone.transfer.sink.staged_runs import StagedFile
from rezone.transfer.sink.staging import Staging
from rezone.transfer.source.options import SourceOptions
from rezone.wire.errors import ConflictError, ForbiddenError, NotReadyError, RezoneError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
NOTE: Final = "note.json"
ANOTHER: Final = 'another "overwriteName" (of `rezone load`: another --name)'


class OverwriteRefusedError(ValueError):
    """Raised when a zone cannot be overwritten so, or not now; says what to do."""


class OverwriteNote(msgspec.Struct):
    """What is known of an overwrite by its name: its rows, their time, whether it is done."""

    digest: str
    rows: int
    time: int
    done: bool = False


class ZoneOverwrite:
    """An overwrite of a zone by a name, which a user has given (`named`) or nobody knows.

    A copy of it goes to each task, all of which stage in the folder of this job.
    """

    def __init__(self, options: SourceOptions, name: str, *, named: bool) -> None:
        self._options = options
        self._name = name
        self._named = named
        self._job = str(uuid.uuid4())

    def check(self) -> bool:
        """Return whether it is done; nothing is asked for.

        OverwriteRefusedError while the zone cannot be overwritten, ValueError when it is not the
        zone that the options name. What a name that was cancelled has staged is forgotten.
        """
        with self._options.client():
            pass
        try:
            return self._driver().is_done()
        except RezoneError as error:
            self._forget_cancelled(error)
            raise _explained(error) from error

    def finish(self, files: Sequence[StagedFile]) -> None:
        """Return once the rows of these files are all of the zone's.

        StagedRowsError for missing and damaged files, ValueError for two rows of one key: nothing
        is asked for. OverwriteRefusedError says what to do. When it fails, run the job again.
        """
        runs = MergedRuns(self.staging(), [file for file in files if file.name])
        digest = runs.digest()
        driver, notes = self._driver(), self._notes()
        try:
            noted = self._noted(driver, digest, runs.rows)
            if not noted.done:
                driver.run(StagedNewRows(runs, noted.time))
                noted.done = True
                notes.note(NOTE, msgspec.json.encode(noted))
        except RezoneError as error:
            self._forget_cancelled(error)
            raise _explained(error) from error
        # With what earlier drivers of the name and attempts that do not count have left.
        self.staging(all_jobs=True).remove_all()
        if not self._named:
            notes.remove_all()

    def forget(self) -> None:
        """Forget what the job has staged.

        Not what is noted of a name that may come again: rows of that time may be there.
        """
        (self.staging() if self._named else self._notes()).remove_all()

    def _forget_cancelled(self, error: RezoneError) -> None:
        """Forget what all drivers of the name have staged, if it was cancelled: none can finish."""
        if _is_cancelled(error):
            self.staging(all_jobs=True).remove_all()

    def _noted(self, driver: Overwriting, digest: str, rows: int) -> OverwriteNote:
        """Return the note of the overwrite, made now if it is the first of its name."""
        notes = self._notes()
        is_done = driver.is_done()
        if notes.noted(NOTE) is None:
            if is_done:
                raise OverwriteRefusedError(
                    f"the overwrite {self._name} is done, and its rows are not known here; give "
                    f"{ANOTHER}"
                )
            made = OverwriteNote(digest, rows, driver.time())
            notes.note(NOTE, msgspec.json.encode(made))
        content = notes.noted(NOTE)  # of another driver, where two have come at a time
        noted = note_in(content or b"", OverwriteNote)
        if noted.digest != digest:
            raise OverwriteRefusedError(
                f"the overwrite {self._name} was begun with other rows ({noted.rows}, now {rows}): "
                f"give {ANOTHER}"
            )
        if noted.done and not is_done:
            raise OverwriteRefusedError(
                f"the overwrite {self._name} was done before, and the zone was overwritten again "
                f"since; give {ANOTHER}"
            )
        return noted

    def _driver(self) -> Overwriting:
        name = asked_name(self._name, self._options.staging or "")
        connect = self._options.connect
        return Overwriting(name, nodes_of(self._options.bootstrap, connect), connect=connect)

    def staging(self, *, all_jobs: bool = False) -> Staging:
        """Return where the job stages rows, or where all of this name do."""
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


def _is_cancelled(error: RezoneError) -> bool:
    """Return whether a data node refuses a name because a person, or the operator, has ended it."""
    return isinstance(error, ConflictError) and " was cancelled" in str(error)


def _explained(error: RezoneError) -> OverwriteRefusedError:
    """Return an error of data nodes with what to do about it."""
    if isinstance(error, ForbiddenError):
        return OverwriteRefusedError(
            f"{error}. An overwrite fills replicas, so it needs the certificate of copy jobs: that "
            'of the Secret <zone>-transfer-tls, by "tlsDirectory" (`rezone load`: by --tls-secret)'
        )
    if isinstance(error, ConflictError):
        what = (
            f"give {ANOTHER}, or none"
            if _is_cancelled(error)
            else "nothing of the zone has changed; run the job again when that is over"
        )
        return OverwriteRefusedError(f"{error}. To overwrite it: {what}")
    if isinstance(error, NotReadyError):
        return OverwriteRefusedError(
            f"{error}. Run the job again, with the same name if it has one: it goes on"
        )
    return OverwriteRefusedError(str(error))
