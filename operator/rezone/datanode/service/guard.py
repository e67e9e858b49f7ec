"""The door of a data node: asks `domain.access.roles` for each call, stream and request of a peer.

A node without TLS has no door, because it cannot know who comes.
"""

from typing import Any

from rezone.datanode.scheduling.error_log import REFUSED
from rezone.datanode.writing.owner import Owner
from rezone.domain.access.roles import Act, act_of, claim_refusal, refusal
from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import Message, NodeId
from rezone.wire.transport.identity import Identity


class Guard:
    """Knows one caller; `here` is the node's own identity, None where plaintext is spoken."""

    def __init__(self, here: Identity | None, peer: str) -> None:
        self._here = here
        self._name = peer
        self._peer = Identity.parse(peer)

    @property
    def owner(self) -> Owner:
        """Whose producers and transactions the caller's are."""
        return Owner(self._name)

    def check(self, request: Message) -> None:
        """Raise ForbiddenError when the caller may not ask for this."""
        self.require(act_of(type(request)))

    def require(self, act: Act) -> None:
        """Raise ForbiddenError when the caller may not do this."""
        if self._here is not None:
            self._refuse_for(refusal(self._peer, act, self._here))

    def require_node(self, node: NodeId, *, shared: bool) -> None:
        """Raise ForbiddenError when the caller is not the data node that it says it is."""
        if self._here is not None:
            self._refuse_for(claim_refusal(self._peer, node, shared=shared))

    def _refuse_for(self, reason: str) -> None:
        if reason:
            REFUSED.note(self._name, reason=reason)
            raise ForbiddenError(reason)


def guard_of(here: Identity | None, context: Any) -> Guard:
    """Return the guard of a Flight call."""
    if here is None:
        return Guard(None, "")
    peer: bytes = context.peer_identity()
    return Guard(here, peer.decode(errors="replace"))
