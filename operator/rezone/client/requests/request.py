"""One request to a partition, and what has become of it so far."""

import dataclasses
from collections.abc import Callable

from rezone.client.connections.connection import Connection
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Message, PartitionId

Answer = tuple[Message, memoryview]
Outcome = Answer | RezoneError


@dataclasses.dataclass(eq=False, kw_only=True)
class Request:
    """A request as its sender makes it, and as the dispatcher deals with it.

    `message(opaque)` makes the header of an attempt. `done` gets the answer's frame, or the error
    it ended with. `anywhere`: a follower may answer, too. `deadline`: by the client's clock; none
    given, it is the settings' timeout after the request was taken. `shared`: it has rows of several
    calls, and a locked row ends it at the first attempt: its sender finds out whose row it is. All
    else belongs to the dispatcher; `attempts` says how often it was sent, `sent_at` when last.
    """

    partition: PartitionId
    message: Callable[[int], Message]
    body: bytes
    done: Callable[[Outcome], None]
    anywhere: bool = False
    shared: bool = False
    deadline: float = 0.0
    opaque: int = 0
    attempt_ends: float = 0.0
    attempts: int = 0
    sent_at: float = 0.0
    redirects: int = 0
    pauses: int = 0
    parked: int = 0
    refusal: RezoneError | None = None
    connection: Connection | None = None
    frames_before: int = 0
    frames_seen: int = 0
    silent_since: float = 0.0
    suspicions: int = 0
    last_error: RezoneError | None = None
