"""Who may do what at a data node: pure, and asked for every call, stream and request.

A certificate is of one zone and good at the data nodes of that zone alone; the operator's is good
at all. What is not listed is control, and control is the operator's.
"""

import enum
from collections.abc import Mapping

from rezone.wire import messages
from rezone.wire.transport.identity import Identity, Role


class Act(enum.StrEnum):
    """What can be asked of a data node; the values are verbs for refusals."""

    ROUTES = "ask for routes"
    READ = "read"
    WRITE = "write"
    INSPECT = "ask for reports, digests and statistics"
    SNAPSHOT = "take snapshots"
    COPY = "fill replicas"
    REPLICATE = "replicate"
    CONTROL = "control data nodes"


ALLOWED: Mapping[Act, frozenset[Role]] = {
    Act.ROUTES: frozenset(Role),
    Act.READ: frozenset({Role.READER, Role.WRITER, Role.ADMIN}),
    Act.WRITE: frozenset({Role.WRITER, Role.ADMIN}),
    Act.INSPECT: frozenset({Role.OPERATOR, Role.ADMIN}),
    Act.SNAPSHOT: frozenset({Role.DATA_NODE, Role.TRANSFER}),
    Act.COPY: frozenset({Role.DATA_NODE, Role.TRANSFER}),
    Act.REPLICATE: frozenset({Role.DATA_NODE}),
    Act.CONTROL: frozenset({Role.OPERATOR}),
}

_ACTS: Mapping[type[messages.Message], Act] = {
    messages.Heartbeat: Act.ROUTES,
    messages.RoutesRequest: Act.ROUTES,
    messages.ScanTicket: Act.READ,
    messages.IndexTicket: Act.READ,
    messages.SelectTicket: Act.READ,
    messages.FollowChanges: Act.READ,
    messages.AcknowledgeChanges: Act.READ,
    messages.ReadRequest: Act.READ,
    messages.TransactionBegin: Act.READ,
    messages.WriteRequest: Act.WRITE,
    messages.TransactionEnd: Act.WRITE,
    messages.ProducerOpen: Act.WRITE,
    messages.ReportRequest: Act.INSPECT,
    messages.DigestRequest: Act.INSPECT,
    messages.StatisticsRequest: Act.INSPECT,
    messages.SnapshotTicket: Act.SNAPSHOT,
    messages.ReadOlderLog: Act.SNAPSHOT,
    messages.BeginReshard: Act.SNAPSHOT,
    messages.ReshardBackfill: Act.SNAPSHOT,
    messages.ReshardCatchUp: Act.SNAPSHOT,
    messages.BulkInsert: Act.COPY,
    messages.ReserveBackfills: Act.COPY,
    messages.AskOverwrite: Act.COPY,
    messages.ClaimBackfill: Act.COPY,
    messages.IngestVersions: Act.COPY,
    messages.CommitIngested: Act.COPY,
    messages.CopyStateRequest: Act.COPY,
    messages.WaitingCopiesRequest: Act.COPY,
}


def act_of(request: type[messages.Message]) -> Act:
    """Return what a message asks for."""
    return _ACTS.get(request, Act.CONTROL)


def claim_refusal(peer: Identity | None, node: int, *, shared: bool) -> str:
    """Return why a peer may not say that it is this data node; empty when it may.

    `shared`: names that do not say which data node it is are taken for any.
    """
    if peer is None or peer.role is not Role.DATA_NODE:
        return f"{peer.uri if peer else 'nobody of Rezone'} is no data node"
    if peer.node is None and not shared:
        return (
            f"{peer.uri} says that it is data node {node}, and its certificate does not: "
            "it must have a name of its own"
        )
    if peer.node is not None and peer.node != node:
        return f"{peer.uri} says that it is data node {node}"
    return ""


def refusal(peer: Identity | None, act: Act, here: Identity) -> str:
    """Return why `peer` may not do this at the data node `here`; empty when it may."""
    if peer is None:
        return f"nobody of Rezone's may {act}: the certificate names no role"
    at_home = (peer.namespace, peer.zone) == (here.namespace, here.zone)
    if peer.role is not Role.OPERATOR and not at_home:
        return (
            f"{peer.uri} may not {act} here: this is zone {here.zone} of namespace {here.namespace}"
        )
    if peer.role not in ALLOWED[act]:
        return f"{peer.uri} may not {act}: only {' or '.join(sorted(ALLOWED[act]))} may"
    return ""
