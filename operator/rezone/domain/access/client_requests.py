"""Who gets a client's certificate by asking the API server for it: pure.

A client posts a CertificateSigningRequest; the API server has checked its token (or whatever it
logged in with) and writes into the request who it is. What it may be is asked of Kubernetes' own
access rules: the verb on `distributionzones/rows` of the zone it wants to use. So data nodes see
certificates only and need no API server, and a right that is taken away ends with the certificate.
"""

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rezone.wire.transport.identity import CLIENT_ROLES, Identity, Role

SIGNER = "rezone.dev/zone-client"
RESOURCE, SUBRESOURCE = "distributionzones", "rows"
VERBS: Mapping[Role, str] = {Role.READER: "read", Role.WRITER: "write", Role.ADMIN: "administer"}

USAGES = ("client auth", "digital signature")
LIFETIME = timedelta(hours=1)
LIFETIME_MAX = timedelta(days=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientRequest:
    """What one request asks for.

    `names` are the alternative names in the request, in its order; `usages` and
    `lifetime_seconds` those of the object around it. `user` is whom the API server knows to ask,
    as the fields of a SubjectAccessReview.
    """

    names: tuple[str, ...]
    usages: tuple[str, ...]
    lifetime_seconds: int | None
    user: Mapping[str, Any]

    @property
    def identity(self) -> Identity | None:
        """The role and the zone that are asked for, None when that is no client's."""
        found = Identity.parse(self.names[0]) if len(self.names) == 1 else None
        return found if found is not None and found.role in CLIENT_ROLES else None

    @property
    def lifetime(self) -> timedelta:
        """How long the certificate is good for: as asked, but a day at most."""
        if self.lifetime_seconds is None:
            return LIFETIME
        return min(timedelta(seconds=self.lifetime_seconds), LIFETIME_MAX)

    def fault(self) -> str:
        """Return what can never be signed about it; empty when all of it can."""
        if self.identity is None:
            roles = ", ".join(CLIENT_ROLES)
            return (
                "it must have one alternative name and no other, the URI "
                f"rezone://zone/<namespace>/<zone>/<role> with a role of {roles}; "
                f"it has {list(self.names)}"
            )
        if strange := sorted(set(self.usages) - set(USAGES)):
            return f"usages {strange} are not a client's; ask for {list(USAGES)}"
        return ""

    def access_review(self) -> dict[str, Any]:
        """Return the spec of the SubjectAccessReview that says whether this user may have it."""
        identity = self.identity
        assert identity is not None  # noqa: S101 - `fault` was asked before
        return {
            **self.user,
            "resourceAttributes": {
                "group": "rezone.dev",
                "resource": RESOURCE,
                "subresource": SUBRESOURCE,
                "verb": VERBS[identity.role],
                "namespace": identity.namespace,
                "name": identity.zone,
            },
        }

    def denial(self) -> str:
        """Return what a user who may not is told, with the rule that would let it."""
        identity = self.identity
        assert identity is not None  # noqa: S101 - `fault` was asked before
        return (
            f"{self.user.get('user')} may not {VERBS[identity.role]} {RESOURCE}/{SUBRESOURCE} of "
            f"{identity.namespace}/{identity.zone}: a Role there must say so "
            "(docs/operate/security.md)"
        )
