"""What each state of a SparkApplication means for a bulk job."""

from collections.abc import Mapping
from types import MappingProxyType

from rezone.domain.observed.spark_states import Meaning, SparkState, meaning_of

_OF_JOBS: Mapping[str, Meaning] = MappingProxyType(
    {
        SparkState.RUNNING: Meaning(
            "its driver runs, and has said nothing yet",
            "look whether its executors start, and at the driver's log",
        ),
        SparkState.FAILED: Meaning("its driver has failed", ""),
    }
)
"""Where a job is not as a copy is: another application follows a copy that has failed."""


def meaning_for_job(state: str) -> Meaning:
    """Return what a state says of a bulk job."""
    return _OF_JOBS.get(state) or meaning_of(state)
