"""Who a certificate stands for, written in its first subject alternative name.

    rezone://operator                             the operator of the installation
    rezone://zone/<namespace>/<zone>/<role>       a part or a user of one zone
    data-node-<id>.<zone>.<namespace>.svc         (a DNS name) one data node of the zone
    rezone://zone/<namespace>/<zone>/data-node/<id>   the same
    <zone>.<namespace>.svc                        (a DNS name) a data node, it does not say which

The last is the name of the zone's Service, and is what a data node's clients verify: pods are
reached by addresses that come and go, so none of them stands in a certificate. The first name
counts and no other, because it is all that gRPC tells a Flight server of its peer. A data node's
own name is a DNS name because cert-manager writes those before URIs, and it needs one of them.
"""

import dataclasses
import enum
import re
from typing import Self

_SCHEME = "rezone://"
_ZONE_PARTS = 4
_SERVICE_PARTS = 3
_NODE_DIGITS_MAX = 9
_NODE_HOST = re.compile(rf"data-node-(0|[1-9][0-9]{{0,{_NODE_DIGITS_MAX - 1}}})\Z")


class Role(enum.StrEnum):
    """What the holder of a certificate may be; `domain.access.roles` says what each may do."""

    OPERATOR = "operator"
    DATA_NODE = "data-node"
    TRANSFER = "transfer"
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"


CLIENT_ROLES = (Role.READER, Role.WRITER, Role.ADMIN)


@dataclasses.dataclass(frozen=True)
class Identity:
    """A role, and the zone it is for; the operator's is for none.

    `node`: which data node it is, None where its name does not say so.
    """

    role: Role
    namespace: str = ""
    zone: str = ""
    node: int | None = None

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return who the first name of a certificate stands for, None for nobody of Rezone's."""
        if name == f"{_SCHEME}{Role.OPERATOR}":
            return cls(Role.OPERATOR)
        if name.startswith(_SCHEME):
            return cls._of_uri(name.removeprefix(_SCHEME).split("/"))
        parts = name.split(".")
        if ":" in name or "/" in name:
            return None
        if parts[-1] != "svc" or not all(parts):
            return None
        if len(parts) == _SERVICE_PARTS + 1:
            return cls._of_node(parts[0], namespace=parts[2], zone=parts[1])
        known = len(parts) == _SERVICE_PARTS
        return cls(Role.DATA_NODE, namespace=parts[1], zone=parts[0]) if known else None

    @classmethod
    def _of_uri(cls, parts: list[str]) -> Self | None:
        if len(parts) == _ZONE_PARTS + 1 and parts[0] == "zone" and parts[3] == Role.DATA_NODE:
            return cls._of_node(f"{parts[3]}-{parts[4]}", parts[1], parts[2])
        if len(parts) != _ZONE_PARTS or parts[0] != "zone" or not all(parts):
            return None
        _, namespace, zone, role = parts
        if role not in set(Role) - {Role.OPERATOR}:
            return None
        return cls(Role(role), namespace=namespace, zone=zone)

    @classmethod
    def _of_node(cls, host: str, namespace: str, zone: str) -> Self | None:
        found = _NODE_HOST.match(host)
        if found is None or not (namespace and zone):
            return None
        return cls(Role.DATA_NODE, namespace, zone, int(found[1]))

    @property
    def uri(self) -> str:
        """The name to write into a certificate; of a data node, into messages for people."""
        if self.role is Role.OPERATOR:
            return f"{_SCHEME}{self.role}"
        node = "" if self.node is None else f"/{self.node}"
        return f"{_SCHEME}zone/{self.namespace}/{self.zone}/{self.role}{node}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The DNS names to write into a data node's certificate, its own first."""
        shared = self.server_name
        return (shared,) if self.node is None else (node_host(self.node, shared), shared)

    @property
    def server_name(self) -> str:
        """The name that the zone's data nodes prove; empty for the operator, who knows all."""
        return server_name(self.namespace, self.zone) if self.zone else ""


def server_name(namespace: str, zone: str) -> str:
    """Return the DNS name in the certificates of a zone's data nodes."""
    return f"{zone}.{namespace}.svc"


def node_host(node: int, shared: str) -> str:
    """Return the DNS name of one data node; `shared` is that of all of its zone."""
    return f"{Role.DATA_NODE}-{node}.{shared}"
