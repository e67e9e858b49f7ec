"""Who may do what: the whole table, so that a change of it is seen."""

import pytest

from rezone.domain.access.roles import Act, act_of, claim_refusal, refusal
from rezone.wire import messages
from rezone.wire.transport.identity import Identity, Role, server_name

HERE = Identity(Role.DATA_NODE, "shop", "accounts")
NODE_12 = Identity(Role.DATA_NODE, "shop", "accounts", 12)
TABLE = {
    #                operator data-node transfer reader writer admin
    Act.ROUTES: (True, True, True, True, True, True),
    Act.READ: (False, False, False, True, True, True),
    Act.WRITE: (False, False, False, False, True, True),
    Act.INSPECT: (True, False, False, False, False, True),
    Act.SNAPSHOT: (False, True, True, False, False, False),
    Act.COPY: (False, True, True, False, False, False),
    Act.REPLICATE: (False, True, False, False, False, False),
    Act.CONTROL: (True, False, False, False, False, False),
}
ROLES = (Role.OPERATOR, Role.DATA_NODE, Role.TRANSFER, Role.READER, Role.WRITER, Role.ADMIN)


def of(role: Role, namespace: str = "shop", zone: str = "accounts") -> Identity:
    """Return a role's identity; the operator's has no zone."""
    return Identity(role) if role is Role.OPERATOR else Identity(role, namespace, zone)


@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize("role", Role)
@pytest.mark.proves("B-12")
def test_the_table(act: Act, role: Role) -> None:
    """A role would do more than it was given a certificate for, or less."""
    allowed = TABLE[act][ROLES.index(role)]
    assert (refusal(of(role), act, HERE) == "") is allowed


@pytest.mark.parametrize("act", Act)
@pytest.mark.parametrize("role", [r for r in Role if r is not Role.OPERATOR])
def test_a_certificate_is_good_in_its_own_zone_only(act: Act, role: Role) -> None:
    """The same name in another namespace is another zone, of somebody else."""
    for foreign in (of(role, zone="orders"), of(role, namespace="lab")):
        assert "this is zone accounts of namespace shop" in refusal(foreign, act, HERE)


def test_who_has_no_role_may_nothing() -> None:
    """A certificate of the same authority that names no role would be let in by its absence."""
    for act in Act:
        assert refusal(None, act, HERE)


def test_what_nobody_has_listed_is_control() -> None:
    """A new message would be open to every client until somebody thinks of it."""
    known = [m for m in vars(messages).values() if isinstance(m, type)]
    kinds = [m for m in known if issubclass(m, messages.Message) and m is not messages.Message]
    open_to_clients = {m.__name__ for m in kinds if act_of(m) is not Act.CONTROL}
    assert open_to_clients == {
        *("RoutesRequest", "ScanTicket", "ReadRequest", "WriteRequest", "ReportRequest"),
        *("TransactionBegin", "TransactionEnd", "ProducerOpen", "DigestRequest"),
        *("StatisticsRequest", "Heartbeat"),
        *("SnapshotTicket", "BulkInsert", "CopyStateRequest", "IndexTicket", "SelectTicket"),
        "WaitingCopiesRequest",
        *("BeginReshard", "ReshardBackfill", "ReshardCatchUp", "FollowChanges"),
        *("ReadOlderLog", "AcknowledgeChanges"),
        *("AskOverwrite", "ReserveBackfills", "ClaimBackfill", "IngestVersions", "CommitIngested"),
    }


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("rezone://operator", Identity(Role.OPERATOR)),
        ("rezone://zone/shop/accounts/writer", Identity(Role.WRITER, "shop", "accounts")),
        ("rezone://zone/shop/accounts/data-node", HERE),
        ("accounts.shop.svc", HERE),
        ("data-node-12.accounts.shop.svc", NODE_12),
        ("rezone://zone/shop/accounts/data-node/12", NODE_12),
        ("data-node-012.accounts.shop.svc", None),
        ("data-node--1.accounts.shop.svc", None),
        ("data-node-1_0.accounts.shop.svc", None),
        ("data-node-9999999999.accounts.shop.svc", None),
        ("data-node-.accounts.shop.svc", None),
        ("writer-1.accounts.shop.svc", None),
        ("data-node-1.accounts.shop.svc.svc", None),
        ("data-node-1..shop.svc", None),
        ("rezone://zone/shop/accounts/data-node/-1", None),
        ("rezone://zone/shop/accounts/data-node/12\n", None),
        ("rezone://zone/shop//data-node/12", None),
        ("rezone://zone/shop/accounts/writer/12", None),
        ("rezone://zone/shop/accounts/operator", None),
        ("rezone://zone/shop/accounts/owner", None),
        ("rezone://zone/shop//writer", None),
        ("rezone://zone/shop/accounts/writer/x", None),
        ("rezone://operator/", None),
        ("accounts.shop.svc.cluster.local", None),
        ("accounts..svc", None),
        ("spiffe://zone/shop/accounts/writer", None),
        ("", None),
    ],
)
def test_names_are_read_strictly(name: str, identity: Identity | None) -> None:
    """A name that is nearly right would be taken for a role nobody granted."""
    assert Identity.parse(name) == identity


def test_what_is_written_is_read() -> None:
    """The operator would issue certificates that data nodes do not know."""
    for role in Role:
        assert Identity.parse(of(role).uri) == of(role)
    assert Identity.parse(server_name("shop", "accounts")) == HERE


@pytest.mark.parametrize(
    ("peer", "node", "shared", "said"),
    [
        (NODE_12, 12, False, ""),
        (NODE_12, 12, True, ""),
        (NODE_12, 1, False, "says that it is data node 1"),
        (NODE_12, 1, True, "says that it is data node 1"),
        (HERE, 1, True, ""),
        (HERE, 1, False, "must have a name of its own"),
        (of(Role.WRITER), 1, True, "is no data node"),
        (None, 1, True, "is no data node"),
    ],
)
def test_a_data_node_is_the_one_of_its_name(
    peer: Identity | None, node: int, shared: bool, said: str
) -> None:
    """A node with a name of its own could be another one where old names are still taken."""
    found = claim_refusal(peer, node, shared=shared)
    assert said in found
    assert bool(found) == bool(said)


def test_the_names_of_a_data_node_begin_with_its_own() -> None:
    """A server is told the first one alone; the second is what clients verify."""
    assert NODE_12.hosts == ("data-node-12.accounts.shop.svc", "accounts.shop.svc")
    assert Identity.parse(NODE_12.hosts[0]) == Identity.parse(NODE_12.uri) == NODE_12
    assert NODE_12.server_name == "accounts.shop.svc"
