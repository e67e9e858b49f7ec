"""The report of a leader transfer, as values: the shape that `-o json` writes and pages have."""

from rezone.report.document import Document
from rezone.report.task import Asked, StateSpan, TransferRow, WaitSpan
from rezone.resources.model import Time


class TransferReport(Document):
    """What `rezone report` shows of a RegionMigration. The history of states is the newest 32.

    `task` is the rebalance that has made it, empty for one that a person has applied. `recovery`
    says what an unclean election has given up. `bytes_done` and `rows_done` are of the copy that
    the new leader's replica was made by, absent where it was over at once. `before` is the last
    transfer of the same partition that had ended when this one began.
    """

    kind: str = "TransferReport"
    namespace: str
    name: str
    zone: str
    task: str = ""
    partition: int
    from_node: int | None = None
    to_node: int | None = None
    state: str
    ended: bool
    reason: str = ""
    message: str = ""
    error: str = ""
    started_time: Time | None = None
    finished_time: Time | None = None
    seconds: int | None = None
    write_unavailable_milliseconds: int | None = None
    copied: bool = False
    bytes_done: int | None = None
    rows_done: int | None = None
    by_spark: str = ""
    old_leader_policy: str
    retain_old_leader_until_time: Time | None = None
    recovery: str = ""
    states: tuple[StateSpan, ...] = ()
    waits: tuple[WaitSpan, ...] = ()
    asked: tuple[Asked, ...] = ()
    before: TransferRow | None = None
