"""Who a certificate stands for, written in its first subject alternative name.

    rezone://operator                             the operator of the installation
    rezone://zone/<namespace>/<zone>/<role>       a part or a user of one zone
    <zone>.<namespace>.svc                        (a DNS name) a data node of the zone

The DNS name is that of the zone's Service, and is what a data node's clients verify: pods are
reached by addresses that come and go, so none of them stands in a certificate. The first name
counts and no other, because it is all that gRPC tells a Flight server of its peer.
"""

import dataclasses
import enum
from typing import Self

_SCHEME = "rezone://"
_ZONE_PARTS = 4
_SERVICE_PARTS = 3


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
    """A role, and the zone it is for; the operator's is for none."""

    role: Role
    namespace: str = ""
    zone: str = ""

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
        if len(parts) == _SERVICE_PARTS and all(parts) and parts[2] == "svc":
            return cls(Role.DATA_NODE, namespace=parts[1], zone=parts[0])
        return None

    @classmethod
    def _of_uri(cls, parts: list[str]) -> Self | None:
        if len(parts) != _ZONE_PARTS or parts[0] != "zone" or not all(parts):
            return None
        _, namespace, zone, role = parts
        if role not in set(Role) - {Role.OPERATOR}:
            return None
        return cls(Role(role), namespace=namespace, zone=zone)

    @property
    def uri(self) -> str:
        """The name to write into a certificate."""
        if self.role is Role.OPERATOR:
            return f"{_SCHEME}{self.role}"
        return f"{_SCHEME}zone/{self.namespace}/{self.zone}/{self.role}"

    @property
    def server_name(self) -> str:
        """The name that the zone's data nodes prove; empty for the operator, who knows all."""
        return server_name(self.namespace, self.zone) if self.zone else ""


def server_name(namespace: str, zone: str) -> str:
    """Return the DNS name in the certificates of a zone's data nodes."""
    return f"{zone}.{namespace}.svc"
