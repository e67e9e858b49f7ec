"""The door of a data node: asks `domain.access` for each call, stream and request of a peer.

A node without TLS has no door, because it cannot know who comes.
"""

from typing import Any

import structlog

from rezone.domain.access import Act, act_of, refusal
from rezone.wire.channel import Channel, Frame
from rezone.wire.errors import ForbiddenError
from rezone.wire.identity import Identity
from rezone.wire.messages import Failure, Message

_log = structlog.get_logger(__name__)


class Guard:
    """Knows one caller; `here` is the node's own identity, None where plaintext is spoken."""

    def __init__(self, here: Identity | None, peer: str) -> None:
        self._here = here
        self._name = peer
        self._peer = Identity.parse(peer)

    def check(self, request: Message) -> None:
        """Raise ForbiddenError when the caller may not ask for this."""
        self.require(act_of(type(request)))

    def require(self, act: Act) -> None:
        """Raise ForbiddenError when the caller may not do this."""
        if self._here is None:
            return
        if reason := refusal(self._peer, act, self._here):
            _log.warning("refused", peer=self._name, reason=reason)
            raise ForbiddenError(reason)

    def data_channel(self, reader: Any, writer: Any) -> Channel:
        """Return a client's channel, on which each request is checked.

        Any role of the zone may open one: a refused request has a clear answer, while a channel
        that is refused looks to a client like a node that is away.
        """
        if self._here is None:
            return Channel(reader, writer)
        self.require(Act.ROUTES)
        return GuardedChannel(self, reader, writer)


class GuardedChannel(Channel):
    """A channel whose forbidden requests are answered with the refusal and never handed on."""

    def __init__(self, guard: Guard, reader: Any, writer: Any) -> None:
        super().__init__(reader, writer)
        self._guard = guard

    def receive(self) -> Frame | None:
        """Return the next frame that the caller may send."""
        while (frame := super().receive()) is not None:
            try:
                self._guard.check(frame[0])
            except ForbiddenError as error:
                opaque = getattr(frame[0], "opaque", 0)
                self.send(Failure(opaque=opaque, error=error.info()))
            else:
                return frame
        return None


def guard_of(here: Identity | None, context: Any) -> Guard:
    """Return the guard of a Flight call."""
    if here is None:
        return Guard(None, "")
    peer: bytes = context.peer_identity()
    return Guard(here, peer.decode(errors="replace"))
