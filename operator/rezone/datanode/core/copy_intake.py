"""The copy that comes to a replica: what is taken, when it counts, and when it may lead.

A replica that lacks rows gives up what it has (`needs_copy`), takes a snapshot in by any number of
attempts, and switches to its leader's log where the snapshot ends. It may lead only once somebody
has compared it with its source (`uncompared`). Pure: `step` takes what has happened and returns
what follows; `copying.copies` carries it out. Transcripts are in
`tests/datanode/transcripts/copy.txt`.
"""

import enum
from typing import NamedTuple

from rezone.wire.errors import ConflictError, CorruptionError, RezoneError
from rezone.wire.messages import CopyFailure, PartitionId, Role


class Form(enum.Enum):
    """What a snapshot is made of."""

    NONE = "none"
    ROWS = "rows"
    FILES = "files"


class Opened(NamedTuple):
    """Somebody wants to send a copy to this replica, which has that role."""

    partition: PartitionId
    role: Role
    needs_copy: bool


class Header(NamedTuple):
    """The snapshot begins; what follows has this form."""

    form: Form


class Chunk(NamedTuple):
    """The next rows, or the next bytes of a file; NONE says that it had no mark of either."""

    form: Form


class Trailer(NamedTuple):
    """The snapshot is whole."""


class Finished(NamedTuple):
    """The rows of the whole snapshot are on the disk, and the log begins at its end."""


class Broken(NamedTuple):
    """The attempt has ended too early. `outdated`: another one has begun since."""

    outdated: bool
    why: str
    failure: CopyFailure


class Compared(NamedTuple):
    """Somebody has compared the copy that began with this snapshot with its source."""

    snapshot: str
    uncompared: str


class Refuse(NamedTuple):
    """Refuse what has come; an attempt that is under way ends by that."""

    error: RezoneError


class Load(NamedTuple):
    """Begin to load, or go on where the attempt before has stopped."""


class Write(NamedTuple):
    """Write what has come."""


class Finish(NamedTuple):
    """Make the snapshot the replica's rows."""


class Switch(NamedTuple):
    """Follow the leader's log from where the snapshot ends."""


class Abort(NamedTuple):
    """End the attempt, and keep what is durable; `tell` that and why it has failed."""

    tell: bool


class Trust(NamedTuple):
    """Let the replica lead again: its rows are those of its source."""


Event = Opened | Header | Chunk | Trailer | Finished | Broken
Effect = Refuse | Load | Write | Finish | Switch | Abort


class Attempt:
    """One attempt to take a copy in."""

    def __init__(self) -> None:
        self.form = Form.NONE

    @property
    def loading(self) -> bool:
        """Whether the snapshot has begun, and has not ended."""
        return self.form is not Form.NONE

    def step(self, event: Event) -> Effect | None:
        """Return what follows from an event; None for nothing."""
        match event:
            case Opened():
                return _open(event)
            case Header(form):
                self.form = form
                return Load()
            case Chunk() | Trailer():
                return self._take(event)
            case Finished():
                self.form = Form.NONE
                return Switch()
            case Broken(outdated):
                # One that the next attempt has fenced off says nothing: the copy goes on.
                return Abort(tell=not (self.loading and outdated))

    def _take(self, event: Chunk | Trailer) -> Effect:
        if not self.loading:
            return Refuse(CorruptionError("a snapshot that does not begin with its header"))
        if isinstance(event, Trailer):
            return Finish()
        if event.form is not self.form:
            return Refuse(CorruptionError("a snapshot batch without a mark of its form"))
        return Write()


def _open(opened: Opened) -> Effect | None:
    """Refuse a copy to a replica that waits for none: it would lose the rows that it has."""
    if opened.needs_copy and opened.role is not Role.LEADER:
        return None
    where, role = f"partition {opened.partition}", opened.role.value
    return Refuse(ConflictError(f"{where} is a {role} here and needs no copy", done=0))


def compare(event: Compared) -> Trust | None:
    """Return what follows from a comparison; None when another copy was made since."""
    return Trust() if event.uncompared and event.snapshot == event.uncompared else None
