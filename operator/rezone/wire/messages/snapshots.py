"""Copies of a partition: what a receiver asks for, and what is sent to it."""

import msgspec

from rezone.wire.messages.base import Message, NodeId, PartitionId
from rezone.wire.messages.records import FailoverEntry, ProducerRecord, TransactionRecord
from rezone.wire.messages.resharding import ReshardPosition, SealMark
from rezone.wire.ranges import Count, Unsigned32

# --- snapshots: DoGet tickets and DoPut descriptors ------------------------------------------


class SnapshotFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of an engine and its bytes, or how many bytes of its beginning there are."""

    name: str
    bytes: Count


class HeldFiles(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The files, whole or in part, that a receiver of a file snapshot holds durably (B-05).

    Files of one engine (`engine_id`) with the same name and size are the same file: engines write
    each once and give no name twice. `snapshot_id` is that of the last attempt.
    """

    engine_id: str
    snapshot_id: str
    files: tuple[SnapshotFile, ...] = ()


class SnapshotTicket(Message, frozen=True):
    """Read a partition's snapshot as a DoGet stream; its source chooses the form.

    Rows (SS-01..03) begin after row id `resume_after`. Files are sent only in a format that all
    receivers can open (`formats`), and without the parts that all of them have (`held`).
    The first batch's metadata is a SnapshotHeader, the last (empty) batch's a SnapshotTrailer.
    """

    partition: PartitionId
    reader: str
    resume_after: bytes = b""
    batch_bytes: Count = 2 << 20
    formats: tuple[str, ...] = ()
    held: HeldFiles | None = None


class SnapshotHeader(Message, frozen=True):
    """What the receiver must keep of the source.

    `offset`: every change below it is in the snapshot; the receiver follows the log from there.
    `resume_after`: the snapshot's rows begin after this row id; who lacks any before must not take
    them. Of files it says nothing: each part says where it belongs.
    `producers` is what the source knows of producers, `transactions` what it knows
    of transactions, open ones and others.
    `format` names the form: empty for rows, else that of the engine files in `files`, which are
    those of the engine `engine_id` and hold these tables too. `reshard_positions`: how far the
    source itself has taken over partitions of the layout before; `seal`: it ends with it.
    `settled`: all of it is committed, so none of it will ever be undone.
    """

    snapshot_id: str
    offset: Count
    commit_time: Count
    leader_epoch: Unsigned32
    failover_log: tuple[FailoverEntry, ...]
    producers: tuple[ProducerRecord, ...]
    rows_estimate: Count
    resume_after: bytes = b""
    format: str = ""
    engine_id: str = ""
    files: tuple[SnapshotFile, ...] = ()
    transactions: tuple[TransactionRecord, ...] = ()
    reshard_positions: tuple[ReshardPosition, ...] = ()
    seal: SealMark | None = None
    settled: bool = False


class FileChunk(Message, frozen=True):
    """Metadata of a part of a file: where it belongs, and the 16 bytes of its XXH3-128."""

    name: str
    offset: Count
    digest: bytes


class SnapshotBatch(Message, frozen=True):
    """Metadata of each batch between header and trailer.

    `early` batches hold rows whose past was about to change and that therefore left the scan order
    (SS-03); all others are in row-id order, and after one all rows up to `last_row_id` have
    been sent.
    """

    early: bool = False
    last_row_id: bytes = b""


class SnapshotTrailer(Message, frozen=True):
    """The end of a snapshot: how many versions and bytes were sent in all.

    Of a file snapshot: no versions, and the bytes of all its files, sent or held already.
    """

    versions: Count
    bytes: Count


class BulkInsert(Message, frozen=True):
    """Descriptor of a DoPut that feeds a snapshot to a receiver; batches and metadata as sent.

    `revision` is that of the trigger that wants the copy. It fences alone: the coordinator that
    started the copy may be gone while the copy goes on.
    """

    partition: PartitionId
    snapshot_source: NodeId
    attempt: str
    revision: Count


class ReadOlderLog(Message, frozen=True):
    """Ask a replica for its log before offset `before`, which a copy has not brought.

    `partition_uuid` is the branch of history there. First without `since`: what is answered is the
    file of the log that ends there, or has its last entry; then `since` where the answer before has
    ended.
    """

    partition: PartitionId
    before: Count
    partition_uuid: str
    since: Count | None = None
    bytes_max: Count = 1 << 20


class OlderLog(Message, frozen=True):
    """Whole entries of the log from `since` on, or from the beginning of the file.

    That is at `offset`, behind an entry of this commit time and leader epoch. It is `before` when
    no named feed needs what is older.
    """

    offset: Count
    commit_time: Count = 0
    leader_epoch: Unsigned32 = 0
    entries: bytes = b""


class CopyState(Message, frozen=True):
    """Where a receiver stands: what a copy that died half-way goes on from (B-05).

    `formats` are the formats of engine files that it can open; none once it has begun with rows.
    `bytes_per_second_max` is the limit of this copy as the node knows it; 0 is none. `admitted`
    says whether others may begin to fill it; None is as good as True.
    """

    partition: PartitionId
    resume_after: bytes = b""
    done: bool = False
    rows: Count = 0
    bytes: Count = 0
    formats: tuple[str, ...] = ()
    held: HeldFiles | None = None
    bytes_per_second_max: Count | None = None
    admitted: bool | None = None


class CopyStateRequest(Message, frozen=True):
    """Ask a receiver where its copy of the partition stands."""

    partition: PartitionId


class WaitingCopiesRequest(Message, frozen=True):
    """Ask a receiver which of its replicas need a copy; answered by WaitingCopies."""


class WaitingCopies(Message, frozen=True):
    """The partitions that need a copy at this node, and those of them whose copy may begin."""

    partitions: tuple[PartitionId, ...]
    admitted: tuple[PartitionId, ...]
