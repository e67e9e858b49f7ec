"""Calls of few rows that are made together: their rows are made, checked and placed in one go.

Each of them costs as many steps of Arrow as all of them together, so a call among others costs a
part of what it does alone.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import pyarrow as pa

from rezone.client.requests.batches import (
    Part,
    PartitionsOf,
    Rows,
    by_partition,
    checked_parts,
    conform,
)
from rezone.client.requests.sharing import SHARING_ROWS_MAX
from rezone.wire.codec.encoded_rows import RowsOfMany, encoded_rows
from rezone.wire.codec.rows import RowCodec

GROUP_CALLS_MAX = 256
"""So many calls are made in one go: more gain nothing, and a bad row sends all of them back."""


def is_few(rows: Rows) -> bool:
    """Whether a call's rows are so few that they cost its thread little; TypeError for no rows."""
    return len(rows) <= SHARING_ROWS_MAX


@dataclasses.dataclass(frozen=True)
class Cut:
    """How the rows of calls are cut: as rows to write, or as keys to delete or read."""

    codec: RowCodec
    partitions_of: PartitionsOf
    bytes_max: int
    keys: bool

    def alone(self, rows: Rows) -> list[Part]:
        """Return the parts of one call; InvalidRowError for a row that breaks schema or limits."""
        return checked_parts(
            self.codec,
            conform(rows, self._schema),
            self.partitions_of,
            delete=self.keys,
            bytes_max=self.bytes_max,
        )

    def together(self, calls: Sequence[Rows]) -> list[list[Part] | Exception]:
        """Return the parts of each call, or what is wrong with its rows alone."""
        found: list[list[Part] | Exception] = []
        for few, same in itertools.groupby(calls, is_few):
            group = list(same)
            step = GROUP_CALLS_MAX if few else 1
            for at in range(0, len(group), step):
                found += self._group(group[at : at + step])
        return found

    @property
    def _schema(self) -> Any:
        return self.codec.key_schema if self.keys else self.codec.arrow_schema

    def _group(self, calls: Sequence[Rows]) -> list[list[Part] | Exception]:
        if len(calls) > 1:
            try:
                batch, ends = _joined(calls, self._schema)
                self.codec.check(batch, delete=self.keys)
            except Exception:  # noqa: BLE001, S110 - of one call at least: each is told by its own
                pass
            else:
                if self.codec.surely_fits(batch, self.bytes_max, delete=self.keys):
                    return self._placed(batch, ends)
        return [self._or_error(rows) for rows in calls]

    def _or_error(self, rows: Rows) -> list[Part] | Exception:
        try:
            return self.alone(rows)
        except Exception as error:  # noqa: BLE001 - whoever waits for the call is told
            return error

    def _placed(self, batch: Any, ends: Sequence[int]) -> list[list[Part] | Exception]:
        encoded = encoded_rows(self.codec, batch)
        where = self.partitions_of(encoded.hashes()).tolist()
        many = RowsOfMany(encoded)
        found: list[list[Part] | Exception] = []
        start = 0
        for end in ends:
            rows = batch.slice(start, end - start)
            if len(set(where[start:end])) == 1:
                found.append([Part(where[start], rows, many.between(start, end))])
            else:
                found.append(list(by_partition(self.codec, rows, self.partitions_of)))
            start = end
        return found


def _joined(calls: Sequence[Rows], schema: Any) -> tuple[Any, list[int]]:
    """Return the rows of all calls as one batch, and where those of each end."""
    if _are_mappings(calls):
        batch = conform([row for rows in calls for row in rows], schema)
    else:
        batch = pa.concat_batches([conform(rows, schema) for rows in calls])
    ends, end = [], 0
    for rows in calls:
        end += len(rows)
        ends.append(end)
    return batch, ends


def _are_mappings(calls: Sequence[Rows]) -> TypeGuard[Sequence[Sequence[Mapping[str, Any]]]]:
    return all(isinstance(rows, Sequence) for rows in calls)
