"""The writer of `mode("overwrite")`: a batch job of Spark stages the rows of a zone's overwrite.

When all tasks have ended well, Spark's commit names one attempt of each; `sink.zone_overwrite` does
the rest.
"""

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any, Self

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rezone.transfer.sink.staged_runs import StagedFile, stage_runs
from rezone.transfer.sink.zone_overwrite import NAME, ZoneOverwrite
from rezone.transfer.source.options import SourceOptions


@dataclasses.dataclass
class StagedRuns(WriterCommitMessage):  # type: ignore[misc]
    """What one attempt of a task has staged."""

    file: StagedFile


class OverwriteWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Makes the rows of a batch job those of the zone."""

    def __init__(self, options: SourceOptions, overwrite: ZoneOverwrite) -> None:
        self._options = options
        self._overwrite = overwrite

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
        overwrite = ZoneOverwrite(options, name or str(uuid.uuid4()), named=name is not None)
        overwrite.check()
        return cls(options, overwrite)

    def write(self, iterator: Iterator[Any]) -> StagedRuns:
        """Stage a task's rows."""
        with self._options.client() as client:
            return StagedRuns(stage_runs(self._overwrite.staging(), client.codec, iterator))

    def commit(self, messages: list[StagedRuns | None]) -> None:
        """Return when the rows of the attempts that count are those of the zone.

        Errors as `ZoneOverwrite.finish`.
        """
        self._overwrite.finish([message.file for message in messages if message is not None])

    def abort(self, messages: list[StagedRuns | None]) -> None:
        """Forget what the job has staged."""
        del messages
        self._overwrite.forget()
