"""A batch that is written again: which of its requests are there already."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rezone.client import OutcomeUnknownError
from rezone.client.requests.calls import Call
from rezone.transfer.submitting import write_once
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2]})


class Partitions:
    """Answers each batch with an error for each of its partitions."""

    def __init__(self, *causes: RezoneError) -> None:
        self._causes = causes

    def submit_write(self, _: Any) -> Any:
        """Return what has become of a batch."""
        call = Call(len(self._causes))
        for cause in self._causes:
            error = OutcomeUnknownError("no answer")
            error.__cause__ = cause
            call.add(error)
        return call.future


def behind() -> RezoneError:
    """Return the refusal of a request whose number is taken by an earlier attempt."""
    return ConflictError("the sequence is behind", sequence=3)


def test_a_batch_is_there_when_each_of_its_requests_is() -> None:
    """A repeat of a unit that was written whole would never end."""
    partitions: Any = Partitions(behind(), behind())
    write_once(partitions, BATCH, delete=False)


@pytest.mark.parametrize(
    "causes", [(behind(), NotReadyError("no leader")), (NotReadyError("no leader"), behind())]
)
def test_a_request_that_failed_beside_one_that_is_there_counts(
    causes: tuple[RezoneError, ...],
) -> None:
    """Its rows were never written, and the unit was noted as done."""
    partitions: Any = Partitions(*causes)
    with pytest.raises(OutcomeUnknownError):
        write_once(partitions, BATCH, delete=False)
