"""How far copies of partitions are: of a rebalance, of a leader transfer, of a zone's repairs."""

from typing import Annotated

from pydantic import Field

from rezone.resources.model import Count, Model, NodeNumber, Time

SAMPLES_MAX = 8


class ProgressSample(Model):
    """How many bytes had been copied at one time."""

    time: Time = Field(description="When.")
    bytes_done: Count = Field(description="Bytes copied by then.")


class CopiesProgress(Model):
    """How far copies are, how fast, and how long they still take."""

    bytes_total: Count = Field(default=0, description="Bytes to be copied, about.")
    bytes_done: Count = Field(default=0, description="Bytes copied.")
    rows_total: Count = Field(
        default=0,
        description="Rows to be copied, about; each version of a row that is kept counts.",
    )
    rows_done: Count = Field(default=0, description="Rows copied, about.")
    skew_percent: Count | None = Field(
        default=None,
        description="The bytes of the largest copy, or range, in percent of the mean one: 100 when "
        "all are equally large; absent while no bytes are known.",
    )
    copy_started_time: Time | None = Field(
        default=None,
        description="When the first bytes had arrived; Spark needs a while before them.",
    )
    bytes_per_second: Count = Field(
        default=0,
        description="The rate over the last minute; 0 when nothing has moved in that time.",
    )
    seconds_left: Count | None = Field(
        default=None,
        description="How long the rest takes at that rate; absent when nothing moves.",
    )
    samples: Annotated[
        tuple[ProgressSample, ...],
        Field(max_length=SAMPLES_MAX, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(default=(), description="What the rate is computed from.")

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """What is counted beside bytes and rows, as (done, total); whole copies come first."""
        return ()


class RepairProgress(CopiesProgress):
    """How far the copies are that a zone makes of replicas which have lost their data."""

    copies_total: Count = Field(
        default=0, description="Replicas that have needed a copy since these repairs began."
    )
    copies_done: Count = Field(default=0, description="Of those, how many need none any more.")
    data_nodes: Annotated[
        tuple[NodeNumber, ...],
        Field(max_length=1024, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(default=(), description="The data nodes whose replicas still need a copy.")

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """The replicas that need no copy any more, and all."""
        return ((self.copies_done, self.copies_total),)
