"""What the coordinator asks of data nodes, and their answers."""

from typing import Annotated

import msgspec

from rezone.wire.messages.base import Fence, Message, NodeId, PartitionId
from rezone.wire.messages.records import (
    IndexPosition,
    LeaderAndIsr,
    PartitionAssignment,
    ZoneConfig,
)
from rezone.wire.messages.reports import IsrProposal
from rezone.wire.ranges import Count, Seconds, Unsigned, Unsigned32

DIGEST_RANGES_MAX = 4096
"""Of each range a digest is held in memory and sent."""

DigestRanges = Annotated[int, msgspec.Meta(ge=1, le=DIGEST_RANGES_MAX)]

# --- control calls: coordinator -> data node ------------------------------------------------


class ConfigureNode(Message, frozen=True):
    """Give the node its zone and the addresses of all its peers ("host:port" by node id).

    `number` rises with every such call of a coordinator, so that a late one is known as such.
    """

    fence: Fence
    config: ZoneConfig
    peers: dict[NodeId, str]
    number: Count = 0


class NotifyLeaderAndIsr(Message, frozen=True):
    """Tell a node the state of partitions (HS-02); it opens replicas that are new to it.

    Sent to every node of the zone for every changed partition, so that each can route (ZR-12).
    """

    fence: Fence
    partitions: tuple[PartitionAssignment, ...]
    peers: dict[NodeId, str]


class RefuseIsr(Message, frozen=True):
    """Tell a leader that its AdjustIsr request was refused, and why (HS-05).

    `state` is the record that stands; a leader that knows an older one takes it. A request that is
    carried out is answered by its new record, with `NotifyLeaderAndIsr`.
    """

    fence: Fence
    partition: PartitionId
    proposal: IsrProposal
    state: LeaderAndIsr
    error_code: str
    error_message: str


class StopReplica(Message, frozen=True):
    """Stop the replica and delete its data; done already is an answer, not an error (ZR-13).

    `partition_epoch` is that of the record without the replica: a later one may have it again.
    """

    fence: Fence
    partition: PartitionId
    leader_epoch: Unsigned32
    partition_epoch: Count


class BeginEmpty(Message, frozen=True):
    """Have a replica that has no rows lead without them: a person has given them up.

    `state` is the record that makes it the leader; without this call it would refuse that.
    """

    fence: Fence
    partition: PartitionId
    state: LeaderAndIsr


class PullSnapshot(Message, frozen=True):
    """Copy the partition from `source` ("host:port") node to node; answered when started."""

    fence: Fence
    partition: PartitionId
    source: str
    bytes_per_second_max: Count = 0


class AdmittedCopy(msgspec.Struct, frozen=True, array_like=True):
    """A copy that may begin, and its part of the zone's rate; 0 is no limit."""

    partition: PartitionId
    bytes_per_second_max: Count = 0


class AdmitCopies(Message, frozen=True):
    """Say of copies that others push to this node which may begin, and which have to wait (B-03).

    An admission lasts `seconds`; the operator repeats it. A copy that has begun goes on in any
    case, at its present rate. Partitions that are not here are passed over.
    """

    fence: Fence
    admitted: tuple[AdmittedCopy, ...]
    held: tuple[PartitionId, ...]
    seconds: Seconds


class Takeover(Message, frozen=True):
    """Hand the partition from this leader to `candidate` with `next_epoch` (DCP-09, RM-04).

    Answered at once: success means the takeover has started or is already done; its outcome is
    in the node's reports.
    """

    fence: Fence
    partition: PartitionId
    leader_epoch: Unsigned32
    candidate: NodeId
    next_epoch: Unsigned32


class Seal(Message, frozen=True):
    """Have the leader end its partition: the partitions of the next layout serve its range.

    Answered when it has begun, or is done; the leader's report says what comes of it. Refused
    unless its record authorizes it (`sealing`), in this leader epoch.
    """

    fence: Fence
    partition: PartitionId
    leader_epoch: Unsigned32


class UpgradeCandidate(Message, frozen=True):
    """Replay to `last_offset` and lead with `next_epoch` (RM-05); done already is success.

    `index` is where the old leader's indexer was stopped, if that is known (DCP-08).
    """

    fence: Fence
    partition: PartitionId
    next_epoch: Unsigned32
    last_offset: Count | None = None
    index: IndexPosition | None = None


class DigestRequest(Message, frozen=True):
    """Digest the rows visible as of `as_of` in `ranges` even cuts of the hashes (B-04).

    `hashes`: only from the first to the last of these, both included; None: all the partition's.
    """

    partition: PartitionId
    as_of: Count | None = None
    ranges: DigestRanges = 16
    hashes: tuple[Unsigned, Unsigned] | None = None


class DigestReply(Message, frozen=True):
    """One hex digest and one row count per range, and the offset up to which rows were applied.

    `uncompared` is what the report of the replica said of that when the digest began.
    """

    digests: tuple[str, ...]
    rows: tuple[Count, ...]
    as_of: Count
    applied_offset: Count
    uncompared: str = ""


class ZoneDeleted(Message, frozen=True):
    """Tell a data node that its zone is deleted: when it is told to stop, it is missed nowhere."""

    fence: Fence
    zone_uid: str


class NoteCompared(Message, frozen=True):
    """Tell a replica that its copy equals its source: it may lead from now on (B-04).

    `uncompared` is what its digest's answer said; another copy that was made since is not meant.
    """

    fence: Fence
    partition: PartitionId
    uncompared: str
