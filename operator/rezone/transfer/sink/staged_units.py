"""Units of a load, staged as rows of an overwrite: the tasks of `rezone load --overwrite`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from rezone.transfer.bulk.fitting import FittingRows, RefusedRow
from rezone.transfer.bulk.progress import Counted, unit
from rezone.transfer.bulk.sources import LoadUnit, Reader
from rezone.transfer.sink.staged_runs import StagedFile, stage_runs
from rezone.transfer.sink.zone_overwrite import ZoneOverwrite
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.rows import RowCodec


class StagedUnit(msgspec.Struct, frozen=True):
    """What an attempt has staged of a unit, and the rows that the zone does not take."""

    file: StagedFile
    bytes: int
    refused: list[RefusedRow]


class UnitStaging(NamedTuple):
    """What each task is told: the zone, the overwrite, and how to read."""

    options: SourceOptions
    overwrite: ZoneOverwrite
    reader: Reader
    refused_max: int

    def stage(self, part: LoadUnit) -> tuple[StagedUnit, Counted]:
        """Stage a unit in a file of its own. Raises TooManyRefusedError."""
        size = 0
        with self.options.client() as client:
            codec: RowCodec = client.codec
            found = FittingRows(self.reader, part, codec, self.refused_max)

            def counted() -> Iterator[Any]:
                nonlocal size
                for batch in found.batches():
                    size += int(codec.row_sizes(batch, delete=False).sum())
                    yield batch

            file = stage_runs(self.overwrite.staging(), codec, counted())
        return StagedUnit(file, size, found.refused), unit(file.rows, size)
