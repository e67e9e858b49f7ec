"""The report of a rebalance, as values: the shape that `-o json` writes and pages are made of."""

from rezone.report.document import Document
from rezone.resources.model import Model, Time


class StateSpan(Model):
    """A state that a task was in, since when and how long."""

    state: str
    time: Time
    seconds: int
    message: str = ""


class Asked(Model):
    """A field of a task by which people act, and which program wrote it last."""

    field: str
    value: str
    manager: str
    time: Time | None = None


class WaitSpan(Model):
    """How long a task has waited for one reason."""

    reason: str
    seconds: int


class PartitionOutage(Model):
    """For how long the transfer of a partition's leader, or its cut-over, stopped writes."""

    partition: int
    milliseconds: int


class WriteOutage(Model):
    """For how long leader transfers or cut-overs have stopped writes, in `longest` by partition."""

    transfers: int
    total_milliseconds: int
    max_milliseconds: int
    longest: tuple[PartitionOutage, ...] = ()


class TransferRow(Model):
    """A leader transfer that a task has made; those in batches have no object."""

    name: str
    partition: int
    from_node: int | None = None
    to_node: int | None = None
    state: str
    ended: bool
    started_time: Time | None = None
    seconds: int | None = None
    write_unavailable_milliseconds: int | None = None
    error: str = ""


class TaskFigures(Model):
    """What tasks are compared by; absent is what is not known, or never was."""

    name: str
    finished_time: Time | None = None
    seconds: int | None = None
    moves_done: int = 0
    leader_moves_done: int = 0
    bytes_done: int = 0
    bytes_per_second: int | None = None
    waited_seconds: int = 0
    copies_dropped: int = 0
    write_unavailable_milliseconds_mean: int | None = None
    write_unavailable_milliseconds_max: int | None = None
    served_percent_mean: int | None = None
    served_percent_max: int | None = None


class TaskReport(Document):
    """What `rezone report` shows. The history of states is the newest 32.

    `bytes_per_second` is the mean while copies were made, absent where nothing was copied.
    `write_unavailability` is absent where no leader was transferred, and nothing cut over.
    `served_percent_mean` and `served_percent_max` of the figures say for how much of the time the
    busiest data node served clients while copies were made. `before` has the figures of the last
    task of the same zone and type that had succeeded when this one began.
    """

    kind: str = "TaskReport"
    namespace: str
    name: str
    zone: str
    type: str
    state: str
    ended: bool
    reason: str = ""
    message: str = ""
    started_time: Time | None = None
    finished_time: Time | None = None
    seconds: int | None = None
    plan_hash: str = ""
    moves_planned: int = 0
    moves_done: int = 0
    leader_moves_planned: int = 0
    leader_moves_done: int = 0
    bytes_planned: int = 0
    bytes_done: int = 0
    seconds_planned: int = 0
    bytes_per_second: int | None = None
    copies_dropped: int = 0
    by_spark: str = ""
    states: tuple[StateSpan, ...] = ()
    waits: tuple[WaitSpan, ...] = ()
    write_unavailability: WriteOutage | None = None
    asked: tuple[Asked, ...] = ()
    transfers: tuple[TransferRow, ...] = ()
    figures: TaskFigures | None = None
    before: TaskFigures | None = None
